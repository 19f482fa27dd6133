"""Bytes that one rank sends per step on each axis, with ring algorithms.

A ring of n ranks moves (n - 1) / n of a buffer per rank to gather or reduce-scatter it, twice that to sum it everywhere
(Patarasuk and Yuan 2009). What crosses is read off `ms_models`: the same layers, the same number of times.
"""

from __future__ import annotations

from dataclasses import dataclass

from migrate.plan.activations import FP32
from migrate.plan.engine import Engine
from migrate.plan.hardware import Hardware
from migrate.plan.job import Choice, Job
from migrate.plan.memory import state_elements
from migrate.plan.shapes import ModelShapes, StageContents
from migrate.plan.widths import LayerWidths


@dataclass(frozen=True)
class Traffic:
    """Bytes sent by a rank."""

    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    pp: float = 0.0
    dp: float = 0.0

    @property
    def total(self) -> float:
        """Of all axes."""
        return self.tp + self.cp + self.ep + self.pp + self.dp

    def seconds(self, choice: Choice, job: Job, hardware: Hardware) -> Traffic:
        """How long each takes on links of their own axis; nothing overlaps."""
        layout = choice.layout
        reach = {
            "tp": layout.tp,
            "cp": layout.tp * layout.cp,
            "ep": layout.tp * layout.cp * layout.ep,
            "dp": layout.tp * layout.cp * layout.dp,
            "pp": layout.world_size,
        }
        found = {}
        for axis, ranks in reach.items():
            inside = ranks <= job.node_size
            speed = (hardware.node_gbytes if inside else hardware.network_gbytes) * hardware.link_efficiency * 1e9
            found[axis] = getattr(self, axis) / speed
        return Traffic(**found)


def forward_passes(choice: Choice, engine: Engine, is_last: bool = False) -> int:
    """How often a layer's forward pass is computed for one micro-batch: once, and again where nothing was kept.

    A last stage of one chunk computes its forward pass as a part of the backward pass only.
    """
    layout = choice.layout
    is_staged = layout.pp > 1 and engine.pipeline_keeps == "inputs" and not (is_last and layout.vpp == 1)
    again = 1 if is_staged else 0
    if is_staged and choice.schedule == "zero_bubble":
        again += 1  # each part of the backward pass computes the stage again
    return 1 + again + (1 if choice.kept_policy in ("block", "full") else 0)


def per_micro_batch(widths: LayerWidths, choice: Choice, job: Job, engine: Engine, forwards: int) -> Traffic:
    """What one layer sends for one micro-batch whose forward pass is computed `forwards` times."""
    layout, a = choice.layout, job.bytes_per_activation
    tokens = choice.tokens(job.seq_length)
    t = layout.tp
    # Forward: results of attention and of the feed-forward become whole; backward: gradients of what they read.
    sums = forwards * 2 * widths.hidden + widths.entered + widths.hidden
    if choice.sequence_parallel:  # gathered and scattered instead of summed; the same bytes
        sums = (forwards + 1) * (widths.entered + widths.hidden)
    tp = 2 * (t - 1) / t * tokens * a * sums
    return Traffic(
        tp=tp,
        cp=_context(widths, choice, tokens, a, forwards),
        ep=_experts(widths, tokens, a, forwards, layout.ep, engine),
    )


def _context(widths: LayerWidths, choice: Choice, tokens: int, a: int, forwards: int) -> float:
    cp, tp = choice.layout.cp, choice.layout.tp
    if cp == 1:
        return 0.0
    keys = tokens * widths.local_key_heads(tp) * (widths.query + widths.value)
    if choice.context == "ring":
        # Keys and values go round once; in the backward pass with their fp32 gradients, which go one step further home.
        return forwards * (cp - 1) * keys * a + (cp - 1) * keys * a + cp * keys * FP32
    heads = widths.heads // tp
    crossing = keys + tokens * heads * (widths.query + widths.value)
    return (forwards + 1) * (cp - 1) / cp * crossing * a


def _experts(widths: LayerWidths, tokens: int, a: int, forwards: int, ep: int, engine: Engine) -> float:
    if not widths.experts or ep == 1:
        return 0.0
    if engine.experts == "grouped":  # all-to-all there and back
        return (forwards + 1) * 2 * (ep - 1) / ep * tokens * widths.chosen * a * widths.hidden
    # Every rank is given all tokens and their routing, and gives back its part of all results.
    there = (ep - 1) * tokens * (a * widths.hidden + 2 * FP32 * widths.chosen)
    back = (ep - 1) * tokens * a * widths.hidden
    return (forwards + 1) * (there + back)


def between_stages(choice: Choice, job: Job, hidden: int) -> float:
    """What a stage sends per step to its neighbours: an activation on and a gradient back, for each chunk."""
    layout = choice.layout
    if layout.pp == 1:
        return 0.0
    shared = layout.tp if choice.sequence_parallel else 1
    one = choice.tokens(job.seq_length) * hidden * job.bytes_per_activation / shared
    return 2.0 * layout.vpp * choice.micro_batches * one


def between_replicas(shapes: ModelShapes, contents: StageContents, choice: Choice, engine: Engine) -> float:
    """What a rank sends per step so that replicas have the same gradients and weights."""
    layout, n, c = choice.layout, choice.layout.dp, choice.layout.cp
    weights, gradients, kept = state_elements(shapes, contents, choice)
    ring = (n - 1) / n
    copies = 2 * (c - 1) / c * FP32 * kept  # context-parallel ranks add up what is left
    if layout.zero == 0:
        both = n * c
        return 2 * (both - 1) / both * FP32 * gradients
    if layout.zero == 1:
        return ring * (FP32 * gradients + engine.weight_bytes * weights) + copies
    reduced = choice.micro_batches * ring * FP32 * kept * n
    gathered = ring * engine.weight_bytes * weights
    if layout.zero == 3:
        gathered *= 2 * choice.micro_batches
    return reduced + gathered + copies
