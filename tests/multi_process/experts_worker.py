"""A router with its experts on two ranks against one process: expert, tensor and sequence parallel, and planted faults.

Every rank computes the one-process answer itself and reports how far its own part is from it. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor, nn, ops
from planting import planted

from mappings.layout import ParallelLayout
from ms_models.layers import moe
from ms_models.layers.moe import Experts, MoE
from ms_models.layers.moe_router import SoftmaxRouter
from ms_models.parallel.collectives import (
    CopyToGroup,
    GatherForSharded,
    ReduceFromGroup,
    ReduceScatterToGroup,
    all_reduce,
)
from ms_models.parallel.linear import Linear, SharedLinear
from ms_models.parallel.mesh import Group, Mesh

EXPERTS, CHOSEN, HIDDEN, FFN = 6, 2, 10, 14
BATCH, LENGTH = 4, 8
POPULAR, UNWANTED = 1, 4
GATE, GATE_UP, DOWN = "gate.weight", "experts.gate_up_proj", "experts.down_proj"

Arrays = dict[str, np.ndarray]


def make_weights() -> Arrays:
    """One expert gets most tokens and one none: the first input is always 1."""
    rng = np.random.default_rng(0)
    shapes = {GATE: (EXPERTS, HIDDEN), GATE_UP: (EXPERTS, 2 * FFN, HIDDEN), DOWN: (EXPERTS, HIDDEN, FFN)}
    weights = {name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}
    weights[GATE][POPULAR, 0] = 1.5
    weights[GATE][UNWANTED, 0] = -50
    return weights


def make_inputs() -> tuple[np.ndarray, np.ndarray]:
    """Hidden states, and the gradient of what the layer returns."""
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal((BATCH, LENGTH, HIDDEN)).astype(np.float32) for _ in range(2))
    x[..., 0] = 1
    return x, dy


@dataclass(frozen=True)
class Layout:
    """How two ranks share the layer: which parts of tokens and weights one has."""

    tp: Group
    ep: Group
    enter: nn.Cell
    leave: nn.Cell
    logits: nn.Cell
    token_axis: int | None
    """Axis of the hidden states that is divided over the ranks; None where every rank has them all."""
    is_gate_partial: bool = False
    """Whether the router's gradient is one over this rank's tokens only."""


def alone() -> Layout:
    one = Mesh.single().group("tp")
    return Layout(one, one, CopyToGroup(one), ReduceFromGroup(one), Linear(HIDDEN, EXPERTS), None)


def expert_parallel(group: Group) -> Layout:
    one = Mesh.single().group("tp")
    return Layout(one, group, CopyToGroup(one), ReduceFromGroup(one), Linear(HIDDEN, EXPERTS), 0, is_gate_partial=True)


def tensor_parallel(group: Group) -> Layout:
    one = Mesh.single().group("tp")
    return Layout(group, one, CopyToGroup(group), ReduceFromGroup(group), Linear(HIDDEN, EXPERTS), None)


def sequence_parallel(group: Group) -> Layout:
    one = Mesh.single().group("tp")
    enter, leave = GatherForSharded(group, 1), ReduceScatterToGroup(group, 1)
    return Layout(group, one, enter, leave, SharedLinear(HIDDEN, EXPERTS, group), 1)


# In which modes each is computed, True: compiled. Sequence parallelism compiles what tensor parallelism does, and more.
LAYOUTS: dict[str, tuple[Callable[[Group], Layout], tuple[bool, ...]]] = {
    "ep": (expert_parallel, (False, True)),
    "tp": (tensor_parallel, (False,)),
    "tp with sequence parallel": (sequence_parallel, (False, True)),
}


def own(whole: np.ndarray, group: Group, axis: int) -> np.ndarray:
    return np.split(whole, group.size, axis)[group.index]


def own_weights(whole: Arrays, layout: Layout) -> Arrays:
    """What this rank has of parameters, or of their gradients."""
    gate, up = np.split(own(whole[GATE_UP], layout.ep, 0), 2, 1)
    return {
        GATE: whole[GATE],
        GATE_UP: np.concatenate((own(gate, layout.tp, 1), own(up, layout.tp, 1)), 1),
        DOWN: own(own(whole[DOWN], layout.ep, 0), layout.tp, 2),
    }


def own_tokens(whole: np.ndarray, layout: Layout) -> np.ndarray:
    group = layout.tp if layout.ep.size == 1 else layout.ep
    return whole if layout.token_axis is None else np.ascontiguousarray(own(whole, group, layout.token_axis))


def compute(layout: Layout, *, jit: bool) -> Arrays:
    """Outputs, and gradients of the input and of every parameter."""
    experts = Experts(EXPERTS, HIDDEN, FFN, tp=layout.tp, ep=layout.ep, enter=layout.enter, leave=layout.leave)
    layer = MoE(SoftmaxRouter(layout.logits, CHOSEN, renormalise=True), experts)
    parameters = list(layer.trainable_params())
    for parameter in parameters:
        parameter.set_data(Tensor(own_weights(make_weights(), layout)[parameter.name]))

    def weighted(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        y = layer(x)
        return (y * dy).sum(), y

    step = ms.value_and_grad(weighted, 0, parameters, has_aux=True)
    inputs = [Tensor(own_tokens(array, layout)) for array in make_inputs()]
    (_, y), (dx, gradients) = (ms.jit(step) if jit else step)(*inputs)
    result = {parameter.name: gradient for parameter, gradient in zip(parameters, gradients, strict=True)}
    if layout.is_gate_partial:
        result[GATE] = all_reduce(result[GATE], layout.ep)
    return {"output": y.asnumpy(), "input": dx.asnumpy(), **{name: value.asnumpy() for name, value in result.items()}}


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64)))


def compare(layout: Layout, reference: Arrays, *, jit: bool) -> dict[str, float]:
    found = compute(layout, jit=jit)
    expected = {**own_weights(reference, layout)}
    expected |= {name: own_tokens(reference[name], layout) for name in ("output", "input")}
    return {name: distance(found[name], expected[name]) for name in expected}


def own_gradient_only(self: GatherForSharded, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    """What is right where what follows is the same on all ranks."""
    here = self.reduce_scatter
    return (ops.split(dout, x.shape[here.axis], here.axis)[here.index],)


def experts_of_the_other(experts: int, group: Group) -> range:
    each = experts // group.size
    start = (group.size - 1 - group.index) * each
    return range(start, start + each)


def routing_of_the_other(self: GatherForSharded, rows: Tensor) -> Tensor:
    whole = self.gather(rows)
    half = whole.shape[0] // 2
    return ops.concat((whole[half:], whole[:half]), 0) if rows.shape[-1] == 2 * CHOSEN else whole


def dropped(self: ReduceScatterToGroup, rows: Tensor) -> Tensor:
    """Zeroes the last row that goes back: a token that found no room."""
    whole = self.reduce_scatter(rows)
    return ops.concat((whole[:-1], whole[-1:] * 0), 0)


def weights_beside(self: Experts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The routing weights do not enter: each rank keeps its part of their gradient."""
    batch, length, hidden = x.shape
    flat = self.enter(x).reshape(-1, hidden)
    y = self.compute(flat, weights.reshape(-1, CHOSEN), chosen.reshape(-1, CHOSEN))
    return self.leave(y.reshape(batch, length, hidden))


def faults(group: Group, reference: Arrays) -> dict[str, dict[str, float]]:
    result = {}

    def see(name: str, owner: Any, attribute: str, fault: Any, layout: Callable[[Group], Layout]) -> None:
        with planted(owner, attribute, fault):
            result[name] = compare(layout(group), reference, jit=False)

    see("gradient of tokens not summed", GatherForSharded, "bprop", own_gradient_only, expert_parallel)
    see("experts in the wrong order", moe, "experts_of_rank", experts_of_the_other, expert_parallel)
    see("routing of the other rank", GatherForSharded, "construct", routing_of_the_other, expert_parallel)
    see("a token dropped", ReduceScatterToGroup, "construct", dropped, expert_parallel)
    see("weights do not enter", Experts, "construct", weights_beside, tensor_parallel)
    return result


def tokens_per_expert() -> list[int]:
    x, _ = make_inputs()
    logits = x.reshape(-1, HIDDEN) @ make_weights()[GATE].T
    return np.bincount(np.argsort(-logits, 1)[:, :CHOSEN].reshape(-1), minlength=EXPERTS).tolist()


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    group = Mesh.from_environment(ParallelLayout(dp=2)).group("dp")
    reference = compute(alone(), jit=False)
    cases = {
        f"{name} {'jit' if jit else 'pynative'}": compare(layout(group), reference, jit=jit)
        for name, (layout, modes) in LAYOUTS.items()
        for jit in modes
    }
    return {"tokens per expert": tokens_per_expert(), "cases": cases, "faults": faults(group, reference)}


if __name__ == "__main__":
    report(work)
