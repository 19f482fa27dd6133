"""`decode_step(model, compiled=True)`: the results of the eager model at every step, and what makes it stay eager."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from ms_models.compat import autograd, decode_step, tape
from ms_models.compat.decode_step import MANY, CompiledCall, difference
from ms_models.compat.layers import Embedding, Linear
from ms_models.compat.module import Module
from ms_models.compat.random import manual_seed, rand

ms.runtime.launch_blocking()

# The compiler orders sums of float32 otherwise.
RTOL, ATOL = 1e-5, 1e-6


class Net(Module):
    """One layer of attention over buffers of fixed size."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.table, self.key, self.head = Embedding(7, 8), Linear(8, 8), Linear(8, 7)
        self.register_buffer("keys", ops.zeros((1, size, 8), dtype=ms.float32))
        self.scale = 1.0

    def construct(self, tokens: Tensor, at: Tensor) -> Tensor:
        x = self.table(tokens)
        keys = self.keys
        keys[:, at] = self.key(x)
        seen = ops.arange(keys.shape[1])[None, :] <= at[:, None]
        scores = ops.masked_fill((x @ keys.swapaxes(1, 2)) * self.scale, ops.logical_not(seen), -1e9)
        return self.head(ops.softmax(scores, -1) @ keys)


@pytest.fixture(autouse=True)
def without_gradient() -> Iterator[None]:
    with autograd.no_grad():
        yield
    decode_step._steps.clear()


def net() -> Net:
    manual_seed(0)
    return Net().set_train(False)


def tokens(values: list[int], at: int) -> tuple[Tensor, Tensor]:
    return ms.tensor([values]), ops.arange(at, at + len(values))


def generated(model: Net, call: object, steps: int = 8) -> list[np.ndarray]:
    """Logits of prefill and of every greedy step."""
    found = [call(*tokens([1, 2, 3], 0)).asnumpy()]  # type: ignore[operator]
    for at in range(3, 3 + steps):
        found.append(call(*tokens([int(found[-1][0, -1].argmax())], at)).asnumpy())  # type: ignore[operator]
    return found


def test_prefill_and_decoding_have_one_graph_each_and_the_buffers_are_written() -> None:
    eager, compiled = net(), net()
    want = generated(eager, eager)
    call = CompiledCall(compiled)
    for turn in range(4):  # prefill is recorded in the third
        compiled.keys.copy_(ops.zeros_like(compiled.keys))
        have = generated(compiled, call)
        for number, (a, b) in enumerate(zip(want, have, strict=True)):
            np.testing.assert_allclose(b, a, RTOL, ATOL, err_msg=f"turn {turn}, step {number}")
            assert np.array_equal(a.argmax(-1), b.argmax(-1))
        np.testing.assert_allclose(compiled.keys.asnumpy(), eager.keys.asnumpy(), RTOL, ATOL)
    assert call.refused is None
    assert [type(graph).__name__ for graph in call.graphs.values()] == ["_Graph", "_Graph"]


def test_new_weights_and_new_buffers_are_seen() -> None:
    model = net()
    call = CompiledCall(model)
    for at in range(4):
        call(*tokens([at], at))
    model.head.weight.set_data(ops.ones_like(model.head.weight))
    model.keys = ops.ones_like(model.keys)
    kept = model.keys.copy()
    have = call(*tokens([5], 6)).asnumpy()
    model.keys.copy_(kept)
    np.testing.assert_allclose(have, model(*tokens([5], 6)).asnumpy(), RTOL, ATOL)


def test_the_switch_is_off_by_default_and_a_graph_is_kept_for_the_next_step() -> None:
    model = net()
    assert decode_step.decode_step(model) is model
    assert decode_step.decode_step(model, compiled=True) is decode_step.decode_step(model, compiled=True)
    by_name = decode_step.decode_step(model.construct, compiled=True)
    assert by_name is decode_step.decode_step(model.construct, compiled=True)
    assert by_name is not decode_step.decode_step(model, compiled=True)
    for at in range(4):
        by_name(*tokens([at], at))
    assert isinstance(by_name, CompiledCall) and by_name.refused is None


class Reads(Net):
    def construct(self, tokens: Tensor, at: Tensor) -> Tensor:
        if tokens.sum() > 100:
            return self.head(self.table(tokens))
        return super().construct(tokens, at)


class Counts(Net):
    def construct(self, tokens: Tensor, at: Tensor) -> Tensor:
        self.scale += 1.0
        return super().construct(tokens, at)


class Draws(Net):
    def construct(self, tokens: Tensor, at: Tensor) -> Tensor:
        return super().construct(tokens, at) + rand(7)


class Holds(Net):
    def __init__(self, size: int = 12) -> None:
        super().__init__(size)
        self.last = [ops.zeros((1, 1, 7), dtype=ms.float32)]

    def construct(self, tokens: Tensor, at: Tensor) -> Tensor:
        self.last[0] = super().construct(tokens, at) + self.last[0]
        return self.last[0]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Reads, "read back to Python"),
        (Draws, "random numbers"),
        (Holds, "other tensors in the place"),
    ],
)
def test_what_stays_eager(kind: type[Net], reason: str) -> None:
    manual_seed(0)
    model = kind().set_train(False)
    call = CompiledCall(model)
    with pytest.warns(UserWarning, match="stays eager"):
        for at in range(4):
            call(*tokens([at], at))
    assert call.refused is not None and reason in call.refused
    assert f"{__file__}:" in call.refused


def test_shapes_that_change_with_every_step_are_said_once() -> None:
    manual_seed(0)
    model = Net(MANY + 8).set_train(False)
    call = CompiledCall(model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for length in range(1, MANY + 5):
            call(*tokens([1] * length, 0))
    (message,) = [str(warning.message) for warning in said]
    assert f"tokens was a tensor of shape (1, {MANY - 1}), then a tensor of shape (1, {MANY})" in message
    for _ in range(3):  # a window that has its full length
        call(*tokens([1] * MANY, 0))
    assert [graph is not None for graph in call.graphs.values()].count(True) == 1


def test_a_number_that_changes_is_a_setting() -> None:
    manual_seed(0)
    model = Counts().set_train(False)
    call = CompiledCall(model)
    for at in range(4):
        call(*tokens([at], at))
    assert all(graph is None for graph in call.graphs.values())
    assert call.changing == "scale was 3.0, then 4.0"


def test_the_number_of_graphs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_step, "LIMIT", 1)
    call = CompiledCall(net())
    with pytest.warns(UserWarning, match="after 1 graphs"):
        for length in (1, 2):
            for _ in range(3):
                result = call(*tokens([2] * length, 0))
            assert result.shape == (1, length, 7)


def test_where_a_gradient_is_recorded_the_model_itself_runs() -> None:
    model = net()
    call = CompiledCall(model.head)
    tape.record()
    with autograd.enable_grad():
        for _ in range(4):
            assert call(ops.ones((1, 8)))._requires_grad
    assert not call.graphs


def test_differences_are_told_with_their_names() -> None:
    assert difference(("a", (int, 1)), ("a", (int, 2))) == "a was 1, then 2"
    assert difference(("a", (list, 1)), ("a", (list, 2))) == "a was 1 items, then 2 items"
    assert difference(("a",), ("a", (int, 1))) == "a has more or fewer items"


def test_a_counter_behind_an_iterator_is_not_seen_here() -> None:
    """What the comparison of runs is for."""
    numbers = itertools.count(1)

    class Drifts(Net):
        def construct(self, tokens: Tensor, at: Tensor) -> Tensor:
            return super().construct(tokens, at) * next(numbers)

    manual_seed(0)
    call = CompiledCall(Drifts().set_train(False))
    for at in range(3):
        call(*tokens([1], at))
    assert call.refused is None
    first, second = (call(*tokens([1], 3)).asnumpy() for _ in range(2))
    assert np.array_equal(first, second)
