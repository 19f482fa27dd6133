"""`ms_compat.einops` against einops on torch tensors: values, gradients, compiled graphs, wrong patterns."""

from __future__ import annotations

from typing import Any

import einops
import mindspore as ms
import numpy as np
import pytest
import torch
from einops.layers import torch as torch_layers

from ms_models.compat import einops as mine
from ms_models.compat import einops_layers

RNG = np.random.default_rng(7)
# fp32 sums of a few dozen numbers in another order
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

REARRANGE: list[tuple[tuple[int, ...], str, dict[str, int]]] = [
    ((2, 6, 5), "b (h d) n -> b h n d", {"h": 2}),
    ((2, 6, 5), "b (h d) n -> b h n d", {"d": 2}),
    ((2, 3, 4, 5), "b h n d -> b n (h d)", {}),
    ((2, 3, 4, 5), "b ... d -> (b d) ...", {}),
    ((2, 3, 4, 5), "... i j -> ... j i", {}),
    ((2, 3, 4, 5), "b ... -> b (...)", {}),
    ((2, 3, 4, 5), "... d -> (d ...)", {}),
    ((3, 4), "... i j -> ... (j i)", {}),
    ((2, 1, 5), "b 1 d -> b d", {}),
    ((2, 5), "b d -> b 1 d ()", {}),
    ((2, 1, 5), "b () d -> d b", {}),
    ((1,), "1 ->", {}),
    ((4, 6), "(h h2) (w w2) -> (h w) (h2 w2)", {"h2": 2, "w2": 3}),
    ((2, 3), "b_1 c2 -> c2 b_1", {}),
    ((2, 3), "  b   c->c b ", {}),
    ((7,), "(1 n) -> n 1", {}),
    ((0, 4), "b (h d) -> b h d", {"h": 2}),
]
REPEAT: list[tuple[tuple[int, ...], str, dict[str, int]]] = [
    ((3, 4), "n d -> b n d", {"b": 2}),
    ((3, 4), "n d -> n (d r)", {"r": 3}),
    ((3, 4), "n d -> (r n) d", {"r": 3}),
    ((3, 4), "n d -> n 2 d 3", {}),
    ((3, 4), "n d -> (2 n) (d 2)", {}),
    ((3, 4), "... d -> ... r d", {"r": 2}),
    ((3, 4), "n d -> d n", {}),
    ((2, 6), "b (h d) -> (b g) h d", {"h": 3, "g": 2}),
    ((), "-> b", {"b": 4}),
]
REDUCE: list[tuple[tuple[int, ...], str, str, dict[str, int]]] = [
    ((2, 4, 6), "b n d -> b d", "mean", {}),
    ((2, 4, 6), "b (n p) d -> b n d", "sum", {"p": 2}),
    ((2, 4, 6), "b (n 2) d -> b n d", "max", {}),
    ((2, 4, 6), "b n d -> d", "min", {}),
    ((2, 4, 6), "b n d -> 1 n 1", "prod", {}),
    ((2, 4, 6), "b ... -> b", "mean", {}),
    ((2, 4, 6), "... d -> ...", "sum", {}),
    ((2, 4, 6), "b n d ->", "sum", {}),
    ((2, 4, 6), "b n d -> d b n", "max", {}),
]
WRONG: list[tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, int]]] = [
    ("rearrange", (2, 6), ("b (h d) -> b h",), {"h": 2}),
    ("rearrange", (2, 6), ("b (h d) -> b h d",), {}),
    ("rearrange", (2, 6), ("b (h d) -> b h d",), {"h": 4}),
    ("rearrange", (2, 6), ("b b -> b",), {}),
    ("rearrange", (2, 6), ("b d n -> b n d",), {}),
    ("rearrange", (2, 6), ("b d -> ... b d",), {}),
    ("rearrange", (2, 6), ("(...) -> ...",), {}),
    ("rearrange", (2, 6), ("b ((d)) -> b d",), {}),
    ("rearrange", (2, 6), ("b (d -> b d",), {}),
    ("rearrange", (2, 6), ("b d) -> b d",), {}),
    ("rearrange", (2, 6), ("b d -> d b",), {"q": 2}),
    ("rearrange", (2, 6), ("b 6 -> b 6",), {}),
    ("rearrange", (2, 6), ("b _d -> _d b",), {}),
    ("rearrange", (2, 6), ("b d -> d b",), {"d": 5}),
    ("rearrange", (2, 6), ("b .. d -> b d",), {}),
    ("rearrange", (2, 6), ("b 1 -> b",), {}),
    ("rearrange", (2, 6), ("b... -> b ...",), {}),
    ("rearrange", (2, 6), ("b, d -> d b",), {}),
    ("repeat", (2, 6), ("b d -> b d r",), {}),
    ("repeat", (2, 6), ("b d -> b r",), {"r": 2}),
    ("repeat", (2, 6), ("b d -> b d 0",), {}),
    ("reduce", (2, 6), ("b d -> b n", "sum"), {}),
    ("reduce", (2, 6), ("b d -> b", "median"), {}),
    ("unpack", (2, 6), ([(2,), (3,)], "b *"), {}),
    ("unpack", (2, 6), ([(-1,), (-1,)], "b *"), {}),
    ("unpack", (2, 6, 1), ([(6,)], "b *"), {}),
    ("einsum", (2, 6), ("b d -> b q",), {}),
]


def normal(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def compare(name: str, arrays: list[np.ndarray[Any, Any]], arguments: tuple[Any, ...], lengths: dict[str, int]) -> None:
    """Value and gradients of one call with tensors first, eagerly and compiled."""
    theirs, ours = getattr(einops, name), getattr(mine, name)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(*tensors, *arguments, **lengths)
    weights = normal(tuple(expected.shape))
    (expected * torch.tensor(weights)).sum().backward()

    def loss(*inputs: ms.Tensor) -> ms.Tensor:
        return (ours(*inputs, *arguments, **lengths) * ms.Tensor(weights)).sum()

    inputs = [ms.Tensor(a) for a in arrays]
    value = ours(*inputs, *arguments, **lengths)
    assert value.shape == tuple(expected.shape)
    np.testing.assert_allclose(value.asnumpy(), expected.detach().numpy(), **TOLERANCE)
    gradients = ms.grad(loss, tuple(range(len(inputs))))(*inputs)
    gradients = gradients if len(inputs) > 1 else (gradients,)
    for mine_, tensor in zip(gradients, tensors, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(mine_.asnumpy(), tensor.grad.numpy(), **TOLERANCE)


@pytest.mark.parametrize(("shape", "pattern", "lengths"), REARRANGE)
def test_rearrange(shape: tuple[int, ...], pattern: str, lengths: dict[str, int]) -> None:
    if 0 in shape:
        assert mine.rearrange(ms.Tensor(normal((3, 4)))[:0], pattern, **lengths).shape == (0, 2, 2)
        return
    compare("rearrange", [normal(shape)], (pattern,), lengths)


@pytest.mark.parametrize(("shape", "pattern", "lengths"), REPEAT)
def test_repeat(shape: tuple[int, ...], pattern: str, lengths: dict[str, int]) -> None:
    compare("repeat", [normal(shape)], (pattern,), lengths)


@pytest.mark.parametrize(("shape", "pattern", "reduction", "lengths"), REDUCE)
def test_reduce(shape: tuple[int, ...], pattern: str, reduction: str, lengths: dict[str, int]) -> None:
    compare("reduce", [normal(shape)], (pattern, reduction), lengths)


def test_reduce_shares_the_gradient_among_equal_maxima() -> None:
    compare("reduce", [np.ones((2, 3), np.float32)], ("b d -> b", "max"), {})


@pytest.mark.parametrize("reduction", ["any", "all"])
def test_reduce_of_truth_values(reduction: str) -> None:
    array = RNG.random((3, 4, 5)) < 0.5
    expected = einops.reduce(torch.tensor(array), "a b c -> b", reduction).numpy()
    assert (mine.reduce(ms.Tensor(array), "a b c -> b", reduction).asnumpy() == expected).all()


def test_reduce_by_a_function_and_integers() -> None:
    array = normal((2, 3, 4))
    expected = einops.reduce(torch.tensor(array), "a b c -> b", lambda x, axes: x.logsumexp(axes)).numpy()
    value = mine.reduce(ms.Tensor(array), "a b c -> b", lambda x, axes: ms.ops.logsumexp(x, axes))
    np.testing.assert_allclose(value.asnumpy(), expected, **TOLERANCE)
    with pytest.raises(NotImplementedError):
        einops.reduce(torch.arange(6).reshape(2, 3), "a b -> a", "mean")
    with pytest.raises(NotImplementedError):
        mine.reduce(ms.Tensor(np.arange(6).reshape(2, 3)), "a b -> a", "mean")


@pytest.mark.parametrize(
    ("shapes", "pattern"),
    [
        ([(2, 3, 4), (2, 5, 4)], "b i d, b j d -> b i j"),
        ([(2, 3, 4), (4, 5)], "... d, d out -> ... out"),
        ([(2, 3), (2, 3), (3,)], "a b, a b, b -> a"),
        ([(3, 3)], "i i ->"),
        ([(2, 3)], "batch time -> time batch"),
    ],
)
def test_einsum(shapes: list[tuple[int, ...]], pattern: str) -> None:
    compare("einsum", [normal(shape) for shape in shapes], (pattern,), {})


@pytest.mark.parametrize(
    ("shapes", "pattern"),
    [([(2, 3, 5), (2, 3, 7, 5), (2, 3, 7, 2, 5)], "i j * k"), ([(2,), (2, 4)], "b *"), ([(), (3,)], "*")],
)
def test_pack_and_unpack(shapes: list[tuple[int, ...]], pattern: str) -> None:
    arrays = [normal(shape) for shape in shapes]
    expected, expected_shapes = einops.pack([torch.tensor(a) for a in arrays], pattern)
    value, packed = mine.pack([ms.Tensor(a) for a in arrays], pattern)
    np.testing.assert_array_equal(value.asnumpy(), expected.numpy())
    assert [tuple(s) for s in packed] == [tuple(s) for s in expected_shapes]
    for piece, array in zip(mine.unpack(value, packed, pattern), arrays, strict=True):
        np.testing.assert_array_equal(piece.asnumpy(), array)


def test_unpack_of_an_unknown_part() -> None:
    array = normal((2, 11, 3))
    shapes = [(2,), (-1, 2), ()]
    expected = einops.unpack(torch.tensor(array), shapes, "b * d")
    for piece, reference in zip(mine.unpack(ms.Tensor(array), shapes, "b * d"), expected, strict=True):
        np.testing.assert_array_equal(piece.asnumpy(), reference.numpy())


@pytest.mark.parametrize("pattern", ["b _ h w", "b ... w", "2 c 4 _", "... w", "b c h w"])
def test_parse_shape(pattern: str) -> None:
    array = normal((2, 3, 4, 5))
    assert mine.parse_shape(ms.Tensor(array), pattern) == einops.parse_shape(torch.tensor(array), pattern)


def test_lists_and_arrays() -> None:
    arrays = [normal((3, 4)) for _ in range(2)]
    expected = einops.rearrange(arrays, "b n d -> n (b d)")
    np.testing.assert_array_equal(mine.rearrange(arrays, "b n d -> n (b d)"), expected)
    value = mine.rearrange([ms.Tensor(a) for a in arrays], "b n d -> n (b d)")
    np.testing.assert_array_equal(value.asnumpy(), expected)
    np.testing.assert_array_equal(mine.asnumpy(value), expected)
    np.testing.assert_array_equal(
        mine.repeat(arrays[0], "n d -> n r d", r=2), einops.repeat(arrays[0], "n d -> n r d", r=2)
    )
    reduced = mine.reduce(arrays[0], "n d -> d", "mean")
    np.testing.assert_allclose(reduced, einops.reduce(arrays[0], "n d -> d", "mean"), **TOLERANCE)


@pytest.mark.parametrize(("name", "shape", "arguments", "lengths"), WRONG)
def test_wrong_patterns(name: str, shape: tuple[int, ...], arguments: tuple[Any, ...], lengths: dict[str, int]) -> None:
    array = normal(shape)
    with pytest.raises(Exception):  # noqa: B017 (einops asserts an unknown reduction, and raises EinopsError otherwise)
        getattr(einops, name)(torch.tensor(array), *arguments, **lengths)
    with pytest.raises(mine.EinopsError):
        getattr(mine, name)(ms.Tensor(array), *arguments, **lengths)


def test_compiled() -> None:
    x, y = ms.Tensor(normal((2, 6, 5))), ms.Tensor(normal((2, 5)))

    def function(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        heads = mine.rearrange(x, "b (h d) n -> b h n d", h=2)
        more = mine.repeat(y, "b n -> b h n d", h=2, d=x.shape[1] // 2)
        scores = mine.einsum(heads, more, "b h i d, b h j d -> b h i j")
        packed, shapes = mine.pack([scores, heads], "b h i *")
        first, second = mine.unpack(packed, shapes, "b h i *")
        return mine.reduce(first, "b h i j -> b i", "mean") + mine.reduce(second, "b h i d -> b i", "max")

    compiled = ms.jit(function)
    np.testing.assert_allclose(compiled(x, y).asnumpy(), function(x, y).asnumpy(), **TOLERANCE)
    eager, graph = (ms.grad(lambda x, y, f=f: f(x, y).sum(), (0, 1))(x, y) for f in (function, compiled))
    for left, right in zip(eager, graph, strict=True):
        np.testing.assert_allclose(left.asnumpy(), right.asnumpy(), **TOLERANCE)


@pytest.mark.parametrize(
    ("name", "arguments", "lengths", "shape"),
    [
        ("Rearrange", ("b (h d) n -> b h n d",), {"h": 2}, (2, 6, 5)),
        ("Reduce", ("b (n 2) d -> b n d", "mean"), {}, (2, 6, 5)),
        ("EinMix", ("b n c -> b n d", "c d", "d"), {"c": 5, "d": 3}, (2, 6, 5)),
        ("EinMix", ("b (h c) n -> b n (h d)", "h c d"), {"h": 2, "c": 3, "d": 4}, (2, 6, 5)),
        ("EinMix", ("... c -> ... (h d)", "c h d", "h d"), {"h": 2, "c": 5, "d": 4}, (2, 6, 5)),
        ("EinMix", ("b n c -> b d n", "n d c", "d"), {"n": 6, "c": 5, "d": 3}, (2, 6, 5)),
    ],
)
def test_layers(name: str, arguments: tuple[str, ...], lengths: dict[str, int], shape: tuple[int, ...]) -> None:
    torch.manual_seed(11)
    theirs = getattr(torch_layers, name)(*arguments, **lengths)
    layer = getattr(einops_layers, name)(*arguments, **lengths)
    assert [(n, tuple(p.shape)) for n, p in layer.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()
    ]
    for (_, parameter), (_, reference) in zip(layer.named_parameters(), theirs.named_parameters(), strict=True):
        parameter.set_data(ms.Tensor(reference.detach().numpy()))
    array = normal(shape)
    expected = theirs(torch.tensor(array))
    weights = normal(tuple(expected.shape))
    np.testing.assert_allclose(layer(ms.Tensor(array)).asnumpy(), expected.detach().numpy(), **TOLERANCE)
    np.testing.assert_allclose(ms.jit(layer)(ms.Tensor(array)).asnumpy(), expected.detach().numpy(), **TOLERANCE)
    parameters = list(layer.parameters())
    if parameters:
        (expected * torch.tensor(weights)).sum().backward()
        gradients = ms.grad(lambda x: (layer(x) * ms.Tensor(weights)).sum(), None, parameters)(ms.Tensor(array))
        for gradient, reference in zip(gradients, theirs.parameters(), strict=True):
            np.testing.assert_allclose(gradient.asnumpy(), reference.grad.numpy(), **TOLERANCE)


def test_initial_values_have_the_bounds_of_einops() -> None:
    torch.manual_seed(11)
    arguments, lengths = ("b c -> b d", "c d", "d"), {"c": 30, "d": 500}
    theirs, layer = torch_layers.EinMix(*arguments, **lengths), einops_layers.EinMix(*arguments, **lengths)
    for parameter, reference in zip(layer.parameters(), theirs.parameters(), strict=True):
        drawn, expected = parameter.asnumpy(), reference.detach().numpy()
        # The largest of 500 uniform numbers is below 0.97 of the bound once in four million draws.
        assert abs(drawn).max() == pytest.approx(abs(expected).max(), rel=0.03)
        assert abs(drawn.mean()) < 0.2 * abs(expected).max()


def test_layers_refuse_wrong_patterns() -> None:
    for build in (
        lambda layers: layers.Rearrange("b d -> d q"),
        lambda layers: layers.Reduce("b d -> q", "sum"),
        lambda layers: layers.EinMix("b c -> b d", "c d", c=2),
        lambda layers: layers.EinMix("b c -> b d q", "c d", c=2, d=3),
    ):
        with pytest.raises(RuntimeError):
            build(torch_layers)
        with pytest.raises(mine.EinopsError):
            build(einops_layers)
