"""Context parallelism on one of four ranks; see four_ranks_worker.

Every rank computes the whole attention itself, with `grouped_attention` and its automatic gradient, and reports how far
its own part is from it. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mappings.layout import ParallelLayout
from ms_models.layers import ring_attention
from ms_models.layers.attention import causal_bias, grouped_attention, within_window
from ms_models.layers.context_attention import context_attention
from ms_models.parallel.context import RING, ULYSSES, ContextPlace
from ms_models.parallel.mesh import Group, Mesh

BATCH, LENGTH = 2, 16


@dataclass(frozen=True)
class Case:
    """One attention: shapes and what it may see."""

    heads: int = 4
    key_heads: int = 2
    width: int = 6
    value_width: int = 6
    padded: bool = True
    window: int | None = None
    scale: float | None = None
    cap: float | None = None
    causal: bool = False
    """Whether the ring may leave out what the mask hides. Rows that see nothing are then left out of the comparison."""


CASES = {
    "causal": Case(padded=False),
    "padded": Case(),
    "window, cap, scale": Case(window=5, cap=2.0, scale=0.7),
    "values of another width": Case(key_heads=4, value_width=3),
    "one key head": Case(key_heads=1),
    "twelve heads, three key heads": Case(heads=12, key_heads=3, cap=3.0),
}
LEAVING_OUT = {
    "half left out": Case(padded=False, causal=True),
    "half left out, window, cap": Case(key_heads=1, window=9, cap=2.0, value_width=4, causal=True),
}
COMPILED = {(RING, 4): "half left out, window, cap", (ULYSSES, 2): "one key head"}


class Problem:
    """Whole tensors of a case, the right answers, and the gradient that comes in."""

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.q = draw(BATCH, LENGTH, case.heads, case.width) * 2
        self.k = draw(BATCH, LENGTH, case.key_heads, case.width)
        self.v = draw(BATCH, LENGTH, case.key_heads, case.value_width)
        self.dy = draw(BATCH, LENGTH, case.heads * case.value_width)
        mask = None
        if case.padded:
            mask = np.ones((BATCH, LENGTH), np.int32)
            mask[0, 11:], mask[1, :6] = 0, 0  # to the left of padding rows see nothing at all
        bias = causal_bias(LENGTH, LENGTH, None if mask is None else Tensor(mask))
        self.bias = bias if case.window is None else within_window(bias, case.window)
        self.compared = np.ones((BATCH, LENGTH, 1), np.float32)
        if case.padded and case.causal:
            self.compared[1, :6] = 0
            self.dy *= self.compared

        def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return grouped_attention(q, k, v, self.bias, case.scale, case.cap)

        self.y, self.gradients = answers(whole, self.q, self.k, self.v, self.dy, jit=False)


def answers(
    function: Callable[..., Tensor], q: np.ndarray, k: np.ndarray, v: np.ndarray, dy: np.ndarray, *, jit: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Output, and the gradients of `sum(output * dy)` to q, k and v."""

    def loss(q: Tensor, k: Tensor, v: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        y = function(q, k, v)
        return (y * dy).sum(), y

    run = ms.value_and_grad(loss, (0, 1, 2), has_aux=True)
    (_, y), gradients = (ms.jit(run) if jit else run)(*(Tensor(x) for x in (q, k, v, dy)))
    return y.asnumpy(), [gradient.asnumpy() for gradient in gradients]


def measure(problem: Problem, group: Group, context: str, *, jit: bool, whole_bias: bool = False) -> dict[str, float]:
    """Relative errors of this rank's part of the output and of every gradient."""
    place = ContextPlace(group, context)
    mine = place.positions(LENGTH).asnumpy()
    core = context_attention(place, problem.case.scale, problem.case.cap, causal=problem.case.causal)
    bias = problem.bias if whole_bias else place.local(problem.bias, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return core(q, k, v, bias)

    parts = [x[:, mine] for x in (problem.q, problem.k, problem.v, problem.dy)]
    y, gradients = answers(attend, *parts, jit=jit)
    found = dict(zip(("y", "q", "k", "v"), [y * problem.compared[:, mine], *gradients], strict=True))
    expected = dict(zip(("y", "q", "k", "v"), [problem.y * problem.compared, *problem.gradients], strict=True))
    return {name: relative(found[name], expected[name][:, mine]) for name in found}


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64)))


@contextmanager
def planted(kind: Any, method: str, fault: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method of a class, or a class of a module, for the time of the block."""
    right = getattr(kind, method)
    setattr(kind, method, fault)
    try:
        yield
    finally:
        setattr(kind, method, right)


Round = ring_attention._Round
right_scores, right_merged = Round.scores, Round.merged


def skipped_block(self: Any, q: Tensor, k: Tensor, bias: Tensor, step: int) -> Any:
    scores, slope = right_scores(self, q, k, bias, step)
    return (scores, slope) if step != 1 else (scores * 0 - 1e9, slope)


def other_block(self: Any, q: Tensor, k: Tensor, bias: Tensor, step: int) -> Any:
    return right_scores(self, q, k, bias, (step + 1) % self.size)


def unscaled(self: Any, seen: Any, scores: Tensor, v: Tensor) -> Any:
    """Forgets to scale down what was summed before a larger score came."""
    highest, total, values = right_merged(self, None, scores, v)
    if seen is None:
        return highest, total, values
    return ops.maximum(seen[0], highest), seen[1] + total, seen[2] + values


class Swapped(Round):
    """Leaves out the half that counts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_late, self.is_early = self.is_early, self.is_late


def faults(problem: Problem, group: Group) -> dict[str, dict[str, float]]:
    """The same comparison with one thing wrong in the ring."""
    result = {}
    with planted(Round, "scores", skipped_block):
        result["block skipped"] = measure(problem, group, RING, jit=False)
    with planted(Round, "scores", other_block):
        result["bias of another block"] = measure(problem, group, RING, jit=False)
    with planted(Round, "merged", unscaled):
        result["merged without scaling"] = measure(problem, group, RING, jit=False)
    with planted(ring_attention.Shift, "construct", lambda self, x: x):
        result["nothing travels"] = measure(problem, group, RING, jit=False)
    return result


def compare() -> dict[str, Any]:
    """Every case over two and four ranks, both ways across, and faults."""
    two = Mesh.from_environment(ParallelLayout(cp=2, dp=2)).group("cp")
    four = Mesh.from_environment(ParallelLayout(cp=4)).group("cp")
    problems = {name: Problem(case) for name, case in (CASES | LEAVING_OUT).items()}
    result: dict[str, Any] = {"index": [two.index, four.index], "errors": {}}
    for context in (RING, ULYSSES):
        for group in (two, four):
            for name, problem in problems.items():
                if name in LEAVING_OUT and context == ULYSSES:
                    continue
                key = f"{context} cp{group.size} {name}"
                result["errors"][key] = measure(problem, group, context, jit=False)
                if COMPILED.get((context, group.size)) == name:
                    result["errors"][f"{key} jit"] = measure(problem, group, context, jit=True)
    key = "ulysses cp4 whole bias"
    result["errors"][key] = measure(problems["padded"], four, ULYSSES, jit=False, whole_bias=True)
    result["faults"] = faults(problems["padded"], four)
    with planted(ring_attention, "_Round", Swapped):
        wrong = measure(problems["half left out"], four, RING, jit=False)
    result["faults"]["wrong half left out"] = wrong
    return result
