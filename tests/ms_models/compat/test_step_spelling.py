"""Operations spelled for the kernels of CPU: a recorded graph gives what the eager run gives, and so do gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from ms_models.compat import step_reductions, step_spelling
from ms_models.compat.attention import scaled_dot_product_attention
from ms_models.compat.backward import Gradient
from ms_models.compat.normalization import layer_norm
from ms_models.compat.products import linear
from ms_models.compat.step_graph import RecordedGraph
from ms_models.compat.step_record import recording

ms.runtime.launch_blocking()

FAST: list[Any] = [  # an axis is added, or the last one has few positions or steps
    (slice(None), None),
    (Ellipsis, None),
    None,
    (None, Ellipsis, slice(None), None),
    (Ellipsis, 1),
    (Ellipsis, -2),
    (slice(None), slice(None), slice(None), 3),
    (Ellipsis, slice(0, None, 2)),
    (Ellipsis, slice(None, None, 2)),
    (slice(None), Ellipsis, slice(3, None, 4)),
]
OWN: list[Any] = [  # left to MindSpore
    1,
    (Ellipsis, slice(4, None, 2)),
    (Ellipsis, slice(0, 2, 2)),
    (Ellipsis, slice(None, None, 3)),
    (slice(None), 1),
    (slice(0, 1), Ellipsis, 0),
    (None, 1),
    (Ellipsis, True),
]


def numbers(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


def parameter(*shape: int) -> ms.Parameter:
    return ms.Parameter(numbers(*shape))


def same_in_a_graph(function: Callable[..., Any], *parameters: ms.Parameter, rtol: float = 0.0) -> None:
    """`function` of the parameters gives tensors, each of which is weighed and summed for the gradient."""

    def total(*given: ms.Parameter) -> Tensor:
        results = function(*given)
        return sum((r * numbers(*r.shape)).sum() for r in results), *results  # type: ignore[return-value]

    graph = RecordedGraph(total)
    want, want_gradients = Gradient(total)(list(parameters), parameters, {})
    gradient = ms.value_and_grad(lambda: graph(*parameters), None, list(parameters), has_aux=True)
    for _ in range(2):
        with recording():
            have, have_gradients = gradient()
        assert [r.shape for r in have] == [r.shape for r in want]
        for a, b in zip((*have[1:], *have_gradients), (*want[1:], *want_gradients), strict=True):
            np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol, 1e-6)  # sums of gradients have another order


def test_keys() -> None:
    same_in_a_graph(lambda x: [x[key] for key in (*FAST, *OWN[:1], *OWN[2:-1])], parameter(2, 3, 4, 4))


@pytest.mark.parametrize(("key", "is_fast"), [(key, True) for key in FAST] + [(key, False) for key in OWN], ids=str)
def test_which_keys(key: Any, is_fast: bool) -> None:
    x = numbers(2, 3, 4, 4)
    own: list[Any] = []
    found = step_spelling._get_item_by(lambda tensor, key: own.append(key))(x, key)
    assert bool(own) is not is_fast
    if is_fast:
        np.testing.assert_array_equal(found.asnumpy(), x.asnumpy()[key])


def test_repeated_elements() -> None:
    def repeated(x: Tensor) -> list[Tensor]:
        several = [ops.repeat_interleave(x, 2, 1), ops.repeat_interleave(x, 3, axis=-1), x.repeat_interleave(2, 0)]
        # without an axis, and by more than is worth parts of their own
        several += [ops.repeat_interleave(x, 2), ops.repeat_interleave(x, 9, 1)]
        one = x.expand_dims(2)
        return [*several, one.expand(2, 3, 4, 5), one.expand((-1, -1, 2, -1)), one.expand(3, 2, 3, 1, 5)]

    same_in_a_graph(repeated, parameter(2, 3, 5))


def test_linear_layers() -> None:
    def layers(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        return [linear(x, w, b), linear(x, w), linear(x[0], w, b), linear(x[0, 0], w, b)]

    same_in_a_graph(layers, parameter(2, 3, 5), parameter(4, 5), parameter(4), rtol=1e-5)


def test_attention_by_masks() -> None:
    """A row that sees nothing gives zeros and no gradient, in graphs and eagerly."""
    mask = np.tril(np.ones((4, 4), bool))
    mask[2] = False

    def attended(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        return [
            scaled_dot_product_attention(q, k, v, is_causal=True),
            scaled_dot_product_attention(q, k, v, attn_mask=Tensor(mask)),
        ]

    q, k, v = (parameter(2, 2, 4, 3) for _ in range(3))
    assert not attended(q, k, v)[1].asnumpy()[:, :, 2].any()
    same_in_a_graph(attended, q, k, v, rtol=1e-5)


def test_reductions_and_what_is_broadcast() -> None:
    def reduced(x: Tensor, w: Tensor, r: Tensor) -> list[Tensor]:
        means = [ops.mean(x, -1, True), x.mean(-1), x.mean(axis=2, keep_dims=True), x.mean(), ops.mean(x, 1)]
        sums = [x.sum(), ops.sum(x), x.sum(-1), x.sum((0, 1)), ops.sum(x, -1, keepdim=True), w.sum(), (x * x)[0].sum()]
        rows = [x * w, w * x, x + w, x - w, w - x, x / r, r * x, x - r, x * x, x + r[0], x * 2.0, 1.0 - x]
        powers = [x**2, x.pow(2), ops.pow(x, 2.0), x**3, x / 8.0, x / 3.0, x / 0.25]
        return [*means, *sums, *rows, *powers, ops.softmax(x, -1), ops.softmax(x, 1)]

    same_in_a_graph(reduced, parameter(2, 3, 5), parameter(5), ms.Parameter(numbers(2, 3, 1).abs() + 1), rtol=1e-5)


def test_layer_norm_and_gelu() -> None:
    def layers(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        norms = [layer_norm(x, (5,), w, b), layer_norm(x, (5,), eps=0.5), layer_norm(x[0], (5,), w)]
        return [*norms, layer_norm(x, (3, 5)), ops.gelu(x), ops.gelu(x, approximate="tanh"), ops.gelu(x, "none")]

    same_in_a_graph(layers, parameter(2, 3, 5), parameter(5), parameter(5), rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "other", "is_cut"),
    [
        ((2, 3, 5), (5,), True),
        ((2, 3, 5), (2, 3, 1), True),
        ((2, 3, 5), (3, 5), False),
        ((2, 3, 5), (3, 1), False),
        ((3, 5), (5,), False),  # two axes already
        ((2, 5000, 5), (5,), False),  # its gradient would be less exact
    ],
)
def test_which_operands(shape: tuple[int, ...], other: tuple[int, ...], is_cut: bool) -> None:
    seen: list[tuple[int, ...]] = []

    def operator(a: Tensor, b: Tensor) -> Tensor:
        seen.append(a.shape)
        return a * b

    a, b = numbers(*shape), numbers(*other)
    result = step_reductions.broadcast_by(operator)(a, b)
    assert (seen != [shape]) is is_cut
    np.testing.assert_array_equal(result.asnumpy(), (a * b).asnumpy())


def test_everything_is_put_back() -> None:
    dense = ops.dense
    before = [(owner, name, vars(owner).get(name)) for owner in (ops, Tensor) for name in dir(owner)]
    with pytest.raises(KeyError), step_spelling.cpu_spelling():
        assert ops.dense is not dense
        raise KeyError
    assert [(owner, name, vars(owner).get(name)) for owner in (ops, Tensor) for name in dir(owner)] == before
