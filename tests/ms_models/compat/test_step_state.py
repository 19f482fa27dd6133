"""What a compiled call must see of its arguments and its model, and what a failed recording must leave as it was."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, ops

from ms_models.compat import autograd
from ms_models.compat.backward import backward_of
from ms_models.compat.decode_step import CompiledCall
from ms_models.compat.module import Module
from ms_models.compat.step_graph import RecordedGraph
from ms_models.compat.step_record import recording

ms.runtime.launch_blocking()

CALLS = 5
"""One is seen, one is watched, one is recorded, two run the graph."""


@pytest.fixture
def without_gradient() -> Iterator[None]:
    with autograd.no_grad():
        yield


def row(value: float) -> Tensor:
    return Tensor(np.full((2, 3), value, np.float32))


@dataclasses.dataclass(slots=True)
class Slots:
    key: Tensor


class InSlots(Module):
    def construct(self, held: Slots) -> Tensor:
        return held.key * 2


class Last(Module):
    def construct(self, held: Any) -> Tensor:
        return held[-1] * 2


class ByName(Module):
    def __init__(self) -> None:
        super().__init__()
        for number in range(2):
            setattr(self, f"part{number}", row(0))

    def construct(self) -> Tensor:
        return sum((getattr(self, f"part{number}") for number in range(2)), row(0))


class Part(Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = slice(0, 2)

    def construct(self, x: Tensor) -> Tensor:
        return x[:, self.part] * 2


def by_name(call: Callable[..., Tensor], model: ByName, value: float) -> Tensor:
    for number in range(2):
        setattr(model, f"part{number}", row(value))
    return call()


@pytest.mark.parametrize(
    ("model", "run"),
    [
        (InSlots(), lambda call, model, value: call(Slots(row(value)))),
        (Last(), lambda call, model, value: call(collections.deque([row(value)]))),
        (ByName(), by_name),
        (Part(), lambda call, model, value: call(row(value))),
    ],
    ids=["slots", "deque", "names made by the code", "a slice"],
)
def test_new_tensors_are_seen(without_gradient: None, model: Module, run: Callable[..., Tensor]) -> None:
    call = CompiledCall(model)
    for value in range(CALLS):
        assert np.unique(run(call, model, float(value)).asnumpy()).tolist() == [2 * value]
    assert [type(graph).__name__ for graph in call.graphs.values()] == ["_Graph"]


def test_another_slice_is_another_graph(without_gradient: None) -> None:
    model = Part()
    call = CompiledCall(model)
    for size in (1, 2):
        model.part = slice(0, size)
        for _ in range(CALLS):
            assert call(row(1)).shape == (2, size)
    assert len(call.graphs) == 2


class Counts(Module):
    """The recording fails behind two writes: only then is it seen that a value is more than handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(row(1), name="weight")
        self.register_buffer("count", ops.zeros((), dtype=ms.float32))
        self.register_buffer("total", ops.zeros((), dtype=ms.float32))

    def construct(self, x: Tensor) -> Tensor:
        self.count: Tensor = self.count + 1
        ops.assign_add(self.total, ops.ones_like(self.total))
        size = ops.stop_gradient(x).sum().item()
        return (x * self.weight).sum() * (size + 1)


def test_a_failed_recording_leaves_the_state_as_it_was(without_gradient: None) -> None:
    model = Counts()
    call = CompiledCall(model)
    with pytest.warns(UserWarning, match="stays eager"):
        for _ in range(CALLS):
            call(row(1))
    assert (float(model.count.asnumpy()), float(model.total.asnumpy())) == (CALLS, CALLS)


def test_a_failed_recording_of_a_training_step_leaves_the_state_as_it_was() -> None:
    model = Counts()
    step = backward_of(lambda x: model(x), model, compiled=True)
    with pytest.warns(UserWarning, match="stays eager"):
        for _ in range(CALLS):
            step(row(1))
    assert (float(model.count.asnumpy()), float(model.total.asnumpy())) == (CALLS, CALLS)


class Drifts(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(row(0), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        ops.assign_add(self.weight, row(1))
        return x + self.weight


def test_a_trainable_parameter_that_is_written_into_is_noticed(without_gradient: None) -> None:
    model = Drifts()
    call = CompiledCall(model)
    with pytest.warns(UserWarning, match="stays eager"):
        have = [float(call(row(0)).asnumpy()[0, 0]) for _ in range(CALLS)]
    assert have == [1, 2, 3, 4, 5]


class Figures:
    """A result that is no container."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


def test_a_result_of_another_kind_keeps_the_step_eager() -> None:
    weight = Parameter(row(1), name="weight")

    def compute_loss(x: Tensor) -> Any:
        loss = (x * weight).sum()
        return loss, Figures(loss)

    step = backward_of(compute_loss, [weight], compiled=True)
    with pytest.warns(UserWarning, match="a result of type Figures"):
        for value in range(3):
            loss, figures = step(row(value))
            assert float(loss.asnumpy()) == float(figures.loss.asnumpy()) == 6 * value


def test_after_recordings_that_fail_operations_run_as_before() -> None:
    for _ in range(3):

        def breaks_off(x: Tensor) -> Tensor:
            x = x * 2
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more"), recording():
            RecordedGraph(breaks_off)(row(1))
        assert (row(1) + 1).asnumpy().tolist() == row(2).asnumpy().tolist()
