"""`memory`: bytes that the fullest rank of a layout needs, part by part."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mappings.layout import ParallelLayout
from migrate.plan.activations import FP32, LayerActivations, head_activations, layer_activations, mask_bytes
from migrate.plan.engine import Engine
from migrate.plan.in_flight import chunks_held
from migrate.plan.job import Choice, Job
from migrate.plan.shapes import LocalTensor, ModelShapes, StageContents
from migrate.plan.widths import LayerWidths

MIB = 1 << 20


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank."""

    weights: int
    """Parameters as the model holds them; with ZeRO 3 the rank's rows, the largest layer and what is outside."""
    gradients: int
    """fp32, added up over micro-batches."""
    optimizer: int
    """States of the rows that the rank keeps."""
    copies: int
    """Weights in the format of the computation, where that is another one."""
    fresh_gradients: int
    """Of one backward pass, before they are added."""
    activations: int
    """Most that is kept and worked on between forward and backward passes."""
    buffers: int
    """What a collective sends and what it gives back."""
    update: int
    """Reduced gradients while the optimizer runs; activations are gone then."""

    @property
    def total(self) -> int:
        """The larger of the two moments: the last backward pass, and the update."""
        always = self.weights + self.gradients + self.optimizer
        passes = self.copies + self.fresh_gradients + self.activations
        return always + self.buffers + max(passes, self.update)

    def to_dict(self) -> dict[str, int]:
        """By name, and the total."""
        return {**{item.name: getattr(self, item.name) for item in fields(self)}, "total": self.total}


def memory(shapes: ModelShapes, widths: dict[int, LayerWidths], choice: Choice, job: Job, engine: Engine) -> RankMemory:
    """Memory of the rank that needs most.

    Args:
        shapes: of the model.
        widths: by kind of layer.
        choice: layout and policies.
        job: sizes.
        engine: the training program.
    """
    acts = {kind: layer_activations(one, choice, job, engine) for kind, one in widths.items()}
    found = [
        _stage_memory(shapes, acts, index, contents, choice, job, engine)
        for index, contents in shapes.stages(choice.layout)
    ]
    return max(found, key=lambda one: one.total)


def state_elements(shapes: ModelShapes, contents: StageContents, choice: Choice) -> tuple[int, int, int]:
    """Elements of a stage's parameters, of its accumulated gradients and of one optimizer state, per rank."""
    sizes = stage_sizes(shapes, contents, choice.layout)
    return sizes.weights, sizes.gradients, sizes.kept


@dataclass(frozen=True)
class StageSizes:
    """Elements on a rank of a stage."""

    weights: int
    gradients: int
    """Accumulated."""
    kept: int
    """Of one optimizer state."""
    outside: int
    """Of weights outside the layers."""
    largest_layer: int
    largest: int
    """Of one tensor."""


def stage_sizes(shapes: ModelShapes, contents: StageContents, layout: ParallelLayout) -> StageSizes:
    """Sizes of a stage; counted once for all choices with the same axes."""
    key = (contents, layout.tp, layout.ep, layout.dp, layout.zero)
    if key not in shapes.sizes:
        shapes.sizes[key] = _count(shapes, contents, layout)
    found: StageSizes = shapes.sizes[key]
    return found


def _count(shapes: ModelShapes, contents: StageContents, layout: ParallelLayout) -> StageSizes:
    weights = padded = kept = largest = 0
    for tensor, count in shapes.tensors(contents, layout.tp, layout.ep):
        replicas = layout.dp // (layout.ep if tensor.is_expert else 1)
        shares = replicas if layout.zero and tensor.shape else 1
        one = tensor.kept(shares)
        weights += count * tensor.size
        kept += count * one
        padded += count * one * shares
        largest = max(largest, tensor.size)
    outside = _size(shapes.ends(contents.is_first, contents.is_last, layout.tp))
    layers = max(_size(shapes.layer(kind, layout.tp, layout.ep)) for kind, _ in contents.layers)
    return StageSizes(weights, kept if layout.zero >= 2 else padded, kept, outside, layers, largest)


def _stage_memory(
    shapes: ModelShapes,
    acts: dict[int, LayerActivations],
    index: int,
    contents: StageContents,
    choice: Choice,
    job: Job,
    engine: Engine,
) -> RankMemory:
    layout = choice.layout
    sizes = stage_sizes(shapes, contents, layout)
    weights, kept, outside, largest_layer = sizes.weights, sizes.kept, sizes.outside, sizes.largest_layer
    of_chunk = (weights - outside) * contents.chunk_layers // contents.layer_count + outside
    here, fresh = weights, of_chunk if engine.fresh == "chunk" else largest_layer
    if layout.zero == 3:
        here, fresh = kept + largest_layer + outside, largest_layer + outside
    # Of gradients or states, as in `ms_models/parallel/optimizer_sharding.py`; a larger tensor is on its own.
    bucket = max(int(choice.bucket_mib * MIB), sizes.largest * FP32)
    is_narrow = job.bytes_per_activation < engine.weight_bytes
    copied = largest_layer + outside if choice.kept_policy in ("block", "full") else of_chunk
    return RankMemory(
        weights=here * engine.weight_bytes,
        gradients=sizes.gradients * FP32,
        optimizer=kept * engine.state_bytes,
        copies=copied * job.bytes_per_activation if is_narrow else 0,
        fresh_gradients=fresh * engine.weight_bytes,
        activations=_activations(shapes, acts, index, contents, choice, job, engine),
        buffers=2 * bucket if layout.world_size > 1 else 0,
        update=kept * FP32 + 4 * bucket,
    )


def _activations(
    shapes: ModelShapes,
    acts: dict[int, LayerActivations],
    index: int,
    contents: StageContents,
    choice: Choice,
    job: Job,
    engine: Engine,
) -> int:
    layout = choice.layout
    total = sum(count * acts[kind].kept(choice.kept_policy) for kind, count in contents.layers)
    per_chunk = -(-total * contents.chunk_layers // contents.layer_count)
    working = max(acts[kind].working(choice.kept_policy) for kind, _ in contents.layers)
    if contents.is_last:
        head = shapes.head_rows(layout.tp)
        working = max(working, head_activations(head, shapes.dims["hidden"], choice, job))
    working += mask_bytes(choice, job, engine)
    if layout.pp == 1:
        return total + working
    held = chunks_held(choice.schedule, layout.pp, layout.vpp, choice.micro_batches, index)
    if engine.pipeline_keeps == "activations":
        return held * per_chunk + working
    entry = next(iter(acts.values())).input
    return held * entry + per_chunk + working


def _size(tensors: tuple[LocalTensor, ...]) -> int:
    return sum(tensor.size for tensor in tensors)
