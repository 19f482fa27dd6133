"""What a layer and the head keep between forward and backward pass, in bytes per rank and micro-batch.

Counted tensor by tensor from `ms_models`: what the gradient of each operation reads. For a GPT of 16-bit numbers with
scores that is what Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) count, without dropout masks and with fp32
softmax; `tests/plan/test_plan_activations.py` holds both against each other. What programs keep beyond that is a factor
of the engine.

Per token and layer, M model width, t tensor-parallel ranks, a bytes of an activation:

| tensor | bytes |
|---|---|
| input of the layer, and of its second half | 2 a M (/ t with sequence parallelism) |
| results of the two norms | 2 a M, in 16 bits as the engine says (/ t with sequence parallelism, plus 2 a M gathered) |
| queries, keys, values, result of attention | a (queries + keys + values + outputs) / t |
| scores behind the softmax, fp32, and rounded | (4 + a) heads keys / t in 16 bits, 4 heads keys / t in fp32 |
| feed-forward with a gate: gate, up, silu(gate), product | 4 a F / t |
| feed-forward without: before and behind the activation | 2 a F / t |
"""

from __future__ import annotations

from dataclasses import dataclass

from migrate.plan.engine import Engine
from migrate.plan.job import Choice, Job
from migrate.plan.widths import LayerWidths

FP32 = 4
LARGEST_BLOCK = 128
"""Rows of a block of tokens of one expert, as in `ms_models/layers/moe_blocks.py`."""
BACKWARD = 2
"""Gradients while a layer's backward pass runs, over its activations (measured, as `Engine.scores`)."""
HEAD_COPIES = 3
"""Logits that exist at a time in fp32 while the loss and its gradient are computed: masked, exponentials, gradient."""


@dataclass(frozen=True)
class LayerActivations:
    """Of one layer, bytes."""

    input: int
    """What is kept where the layer is computed again."""
    scores: int
    """What grows with the square of the length, forward."""
    rest: int
    """Everything else that is kept, the input included."""
    copies: int
    """Weights that experts copy for the blocks of their tokens; gone when the product is done."""

    def kept(self, recompute: str) -> int:
        """What the policy leaves until the backward pass."""
        if recompute in ("block", "full"):
            return self.input
        return self.rest + (0 if recompute == "attention" else self.scores)

    def working(self, recompute: str) -> int:
        """What the backward pass of this layer needs beside what was kept: recomputed tensors and gradients."""
        whole = self.rest + self.scores
        return whole - self.kept(recompute) + BACKWARD * whole + self.copies


def layer_activations(widths: LayerWidths, choice: Choice, job: Job, engine: Engine) -> LayerActivations:
    """Activations of a layer."""
    layout, a = choice.layout, job.bytes_per_activation
    tokens, tp = choice.tokens(job.seq_length), layout.tp
    shared = tp if choice.sequence_parallel else 1
    residual = 2 * a * widths.hidden
    norms = 2 * (a if a == FP32 else engine.norm_bytes_16) * widths.hidden
    gathered = 2 * a * widths.hidden if shared > 1 and engine.gathered else 0
    heads = widths.heads // tp
    qkv = heads * widths.query + widths.local_key_heads(tp) * (widths.query + widths.value) + heads * widths.value
    ffn = widths.inner * 4 // 3 if widths.gated else widths.inner
    numbers = (residual + norms) // shared + gathered + a * (qkv + 2 * widths.latent + ffn // tp)
    scores = 0
    if engine.scores:
        # The ring keeps no scores: each step's block is made again in the backward pass.
        is_ring = layout.cp > 1 and choice.context == "ring"
        keys = 0 if is_ring else job.seq_length
        scores = int(tokens * heads * keys * (engine.scores * FP32 + (a if a < FP32 else 0)))
    moe, copies = _experts(widths, choice, tokens, a, engine)
    rest = int(engine.rest * (tokens * numbers + moe))
    return LayerActivations(tokens * a * widths.hidden // shared, scores, rest, copies)


def expert_rows(widths: LayerWidths, choice: Choice, tokens: int, engine: Engine) -> tuple[int, int]:
    """Rows that the experts of a rank multiply for a micro-batch, and the blocks they lie in, 0 without blocks."""
    if not widths.experts:
        return 0, 0
    ep = choice.layout.ep
    here = widths.experts // ep
    if engine.experts == "grouped":
        return tokens * widths.chosen, 0
    most = tokens * ep * min(widths.chosen, here)
    share = max(most // (2 * here), 1)
    rows = min(1 << (share - 1).bit_length(), LARGEST_BLOCK)
    used = min(here, most)
    blocks = used + (most - used) // rows
    return blocks * rows, blocks


def _experts(widths: LayerWidths, choice: Choice, tokens: int, a: int, engine: Engine) -> tuple[int, int]:
    rows, blocks = expert_rows(widths, choice, tokens, engine)
    if not rows:
        return 0, 0
    width = widths.expert_width // choice.layout.tp
    kept = rows * a * (2 * widths.hidden + 4 * width)
    gathered = tokens * choice.layout.ep * (a * widths.hidden + 2 * FP32 * widths.chosen)
    copies = blocks * 2 * width * widths.hidden * a  # gate and up, the larger of two products
    return kept + (gathered if engine.experts == "blocks" else 0), copies


def head_activations(vocab_rows: int, hidden: int, choice: Choice, job: Job) -> int:
    """What is there while the head's loss and gradient are computed, bytes. `vocab_rows` are those of the rank."""
    tokens, a = choice.tokens(job.seq_length), job.bytes_per_activation
    raw = a if a < FP32 else 0
    return tokens * (vocab_rows * (raw + HEAD_COPIES * FP32) + 2 * a * hidden)


def mask_bytes(choice: Choice, job: Job, engine: Engine) -> int:
    """What is added to attention scores, fp32 `[B, 1, queries, keys]`; kernels that make no scores need none."""
    return choice.tokens(job.seq_length) * job.seq_length * FP32 if engine.scores else 0
