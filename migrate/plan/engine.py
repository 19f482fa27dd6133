"""`Engine`: what a training program keeps and computes twice. Plans are for this one; published runs used others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mappings.errors import UserError


@dataclass(frozen=True)
class Engine:
    """Habits of a training program that memory and time depend on."""

    name: str
    pipeline_keeps: Literal["inputs", "activations"]
    """What a stage keeps of a micro-batch until its backward pass: the inputs of its chunks, which are then computed
    again, or what the recompute policy leaves."""
    scores: float
    """How often attention scores, fp32 `[heads, queries, keys]`, exist per layer that is kept; 0 for fused kernels."""
    gathered: bool
    """Whether sequences that sequence parallelism gathered for a layer are kept, or gathered again."""
    rest: float
    """Other activations that are kept, over those that gradients read."""
    experts: Literal["blocks", "grouped"]
    """How experts compute: in blocks whose number allows for the most lopsided routing, with a copy of the weights for
    each block (`ms_models/layers/moe_blocks.py`), every rank being given all tokens; or as one grouped product of the
    tokens that an all-to-all brings, routed evenly."""
    fresh: Literal["chunk", "layer"]
    """Gradients of one backward pass that exist before they are added up: of all that a rank differentiates at once, or
    of a layer."""
    weight_bytes: int
    """Of a parameter as the model holds it. Where these are 2, the fp32 master is one of the optimizer's states."""
    state_bytes: int
    """Optimizer states of a parameter."""
    norm_bytes_16: int
    """What a norm keeps of one number where computation is in 16 bits, its input left aside."""
    zero3_slowdown: float
    """Step time of ZeRO 3, which runs operator by operator, over that of a compiled step."""


MSMIGRATE = Engine(
    name="msmigrate",
    pipeline_keeps="inputs",
    scores=3.4,
    gathered=True,
    rest=1.25,
    experts="blocks",
    fresh="chunk",
    weight_bytes=4,
    state_bytes=8,
    norm_bytes_16=10,
    zero3_slowdown=2.0,
)
"""`ms_models`. `scores` and `rest` are fitted to seven runs, operator by operator on CPU, of
`tests/benchmarks/plan_memory.py` (docs/plan.md): a softmax keeps what it reads and what it gives. On a device that
reuses memory a compiled graph may need less (not measured); on CPU it frees nothing and needs more. In 16 bits, a norm
computes in fp32 and keeps its input and its result in it, besides the rounded one (`ms_models/layers/norm.py`). The
slowdown is an assumption: a small step on CPU takes 3.4 s operator by operator and 0.9 s compiled, most of it overhead
that large matrices hide."""

MEGATRON = Engine(
    name="megatron",
    pipeline_keeps="activations",
    scores=0,
    gathered=False,
    rest=1.0,
    experts="grouped",
    fresh="layer",
    weight_bytes=2,
    state_bytes=12,
    norm_bytes_16=2,
    zero3_slowdown=1.0,
)
"""Megatron-LM with its distributed optimizer, fused attention and fp32 gradients: 6 + 12 / dp bytes per parameter
(docs of `--use-distributed-optimizer`). For the comparison with published runs; this project cannot run it."""

ENGINES = {engine.name: engine for engine in (MSMIGRATE, MEGATRON)}


def engine_named(name: str) -> Engine:
    """An engine.

    Raises:
        UserError: there is none of this name.
    """
    if name not in ENGINES:
        raise UserError(f"plan: unknown engine {name!r}; known are {', '.join(ENGINES)}")
    return ENGINES[name]
