"""The comparison of eager and compiled results: what is not finite, and calls that never become a graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from mindspore.common.api import _pynative_executor

from migrate.code.verify.bounds import distance
from migrate.code.verify.graph_comparison import GraphComparison, comparison_of_call
from ms_models.compat import autograd, decode_step, tape
from ms_models.compat.module import Module

ms.runtime.launch_blocking()

INF = float("inf")
NAN = float("nan")


@pytest.mark.parametrize(
    ("x", "y", "off"),
    [
        ([3.0, -INF], [3.0, -INF], 0.0),
        ([3.0, NAN], [3.0, NAN], 0.0),
        ([3.0, -INF], [4.0, -INF], 1.0),
        ([3.0, -INF], [3.0, INF], INF),
        ([3.0, -INF], [3.0, NAN], INF),
        ([3.0, -INF], [3.0, 0.0], INF),
        ([3.0, 0.0], [3.0, NAN], INF),
    ],
)
def test_distance(x: list[float], y: list[float], off: float) -> None:
    assert distance(np.array(x), np.array(y)) == (off, 3.0)


def comparison(eager: list[float], compiled: list[float]) -> str | None:
    status = SimpleNamespace(refused=None, failed=False, runs=0)

    def candidate(*_: Any) -> Any:
        status.runs += 1
        return Tensor(np.array(compiled, np.float32)), ()

    def read(*_: Any) -> Any:
        return SimpleNamespace(tensors=[], buffers=[], held=list)

    return GraphComparison(candidate, read, lambda *_: (Tensor(np.array(eager, np.float32)), ()), status, 1).difference(
        ()
    )


def test_a_difference_beside_masked_logits_is_seen() -> None:
    assert comparison([1.0, -INF], [1.0, -INF]) is None
    assert "compiled and eager differ: result 0 by 1 " in str(comparison([1.0, -INF], [2.0, -INF]))
    assert "compiled and eager differ: result 0 by inf" in str(comparison([1.0, -INF], [1.0, 0.0]))


class Counting(Module):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.calls, self.step = 0, step

    def construct(self, x: Tensor) -> Tensor:
        self.calls += self.step
        return x * 2


@pytest.mark.parametrize(("step", "compared"), [(0, 1), (1, 0)])
def test_calls_without_a_graph_are_not_equal_to_one(step: int, compared: int) -> None:
    found = comparison_of_call(decode_step, Counting(step))
    was_recording = _pynative_executor.grad_flag()
    tape.record()  # as programs with a tape do
    with autograd.enable_grad():
        assert found.difference((), [Tensor(np.ones((2, 3), np.float32))]) is None
    _pynative_executor.set_grad_flag(was_recording)
    assert found.compared == compared
    assert (found.refused is None) == bool(compared)
    assert compared or "no two calls have the same shapes and settings" in str(found.refused)
