"""`ms_compat.einx` against the same computation spelled out in torch: values, types, gradients, compiled graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat import einx
from ms_models.compat.einops_patterns import EinopsError

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.asarray(RNG.standard_normal(shape), np.float32)


NUMBERS = np.arange(12).reshape(3, 4)
CASES: list[tuple[str, str, list[Any], Callable[..., torch.Tensor]]] = [
    ("subtract", "j, i -> i j", [normal(3), normal(4)], lambda j, i: j[None, :] - i[:, None]),
    ("subtract", "j, i -> 1 i j", [normal(3), normal(4)], lambda j, i: (j[None, :] - i[:, None])[None]),
    (
        "subtract", "... j, ... i -> ... i j", [normal(2, 5, 3), normal(2, 5, 4)],
        lambda j, i: j[..., None, :] - i[..., :, None],
    ),
    ("multiply", "b n, b", [normal(2, 3), normal(2)], lambda x, y: x * y[:, None]),
    ("multiply", "b f n, n f", [normal(2, 3, 4), normal(4, 3)], lambda x, y: x * y.T),
    ("multiply", "b n h, b h n d -> b h n d", [normal(2, 3, 4), normal(2, 4, 3, 5)], lambda x, y: x.mT[..., None] * y),
    (
        "add", "b n d, s d -> (b s) n d", [normal(2, 3, 4), normal(5, 4)],
        lambda x, y: (x[:, None] + y[None, :, None]).reshape(10, 3, 4),
    ),
    ("add", "(a b) c, b -> a b c", [normal(6, 2), normal(3)], lambda x, y: x.reshape(2, 3, 2) + y[None, :, None]),
    ("add", "a, a, a", [normal(2), normal(2), normal(2)], lambda x, y, z: x + y + z),
    ("divide", "a b, -> b a", [normal(2, 3), 2.0], lambda x, y: (x / y).T),
    ("less", "j, i -> i j", [normal(3), normal(4)], lambda j, i: j[None, :] < i[:, None]),
    ("less_equal", "a b, b", [NUMBERS, NUMBERS[1]], lambda x, y: x <= y),
    ("greater", "a b, b", [NUMBERS, NUMBERS[1]], lambda x, y: x > y),
    ("greater_equal", "a b, b", [NUMBERS, NUMBERS[1]], lambda x, y: x >= y),
    ("equal", "j, b i -> b j i", [np.arange(3), NUMBERS], lambda x, y: x[None, :, None] == y[:, None]),
    ("not_equal", "a b, b", [NUMBERS, NUMBERS[1]], lambda x, y: x != y),
    ("logical_and", "a, b -> a b", [np.arange(2) > 0, np.arange(3) > 0], lambda x, y: x[:, None] & y),
    ("logical_or", "a, b -> a b", [np.arange(2) > 0, np.arange(3) > 0], lambda x, y: x[:, None] | y),
    (
        "where", "b n, b n d, -> b n d", [normal(2, 3) > 0, normal(2, 3, 4), 0.0],
        lambda c, x, y: torch.where(c[..., None], x, y),
    ),
    ("where", "i j, j,", [normal(2, 3) > 0, np.arange(3), -1], lambda c, x, y: torch.where(c, x, y)),
    (
        "get_at", "b n [l], b n -> b n", [normal(2, 3, 4), NUMBERS[:2, :3] % 4],
        lambda x, i: x.gather(2, i[..., None])[..., 0],
    ),
    ("get_at", "[v] d, b n -> n b d", [normal(12, 2), NUMBERS], lambda x, i: x[i].transpose(0, 1)),
    (
        "get_at", "b [n] d, k b -> d k b", [normal(4, 5, 2), NUMBERS % 5],
        lambda x, i: x[torch.arange(4), i].permute(2, 0, 1),
    ),
    ("get_at", "b n [l], n -> b n", [normal(2, 3, 4), np.arange(3)], lambda x, i: x[:, torch.arange(3), i]),
    ("get_at", "[n], -> ", [normal(3), np.array(2)], lambda x, i: x[i]),
    ("get_at", "[n], k -> k", [normal(3), np.array([-1, 0, -3])], lambda x, i: x[i]),
    ("get_at", "b [n], b -> b", [normal(2, 3), np.array([-3, -1])], lambda x, i: x[torch.arange(2), i]),
    ("sum", "... c -> ...", [normal(2, 3, 4)], lambda x: x.sum(-1)),
    ("mean", "a b c -> c a", [normal(2, 3, 4)], lambda x: x.mean(1).T),
    ("max", "a b -> b", [normal(2, 3)], lambda x: x.amax(0)),
    ("min", "a b -> b", [normal(2, 3)], lambda x: x.amin(0)),
    ("prod", "a b -> b", [normal(2, 3)], lambda x: x.prod(0)),
    ("any", "a b -> b", [normal(2, 3) > 0], lambda x: x.any(0)),
    ("all", "a b -> b", [normal(2, 3) > 0], lambda x: x.all(0)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "operands", "reference"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_operation(name: str, pattern: str, operands: list[Any], reference: Callable[..., torch.Tensor]) -> None:
    function = getattr(einx, name)
    theirs = [torch.tensor(x) if isinstance(x, np.ndarray) else x for x in operands]
    mine = [ms.Tensor(x) if isinstance(x, np.ndarray) else x for x in operands]
    expected = reference(*theirs)
    for call in (function, ms.jit(function)):
        value = call(pattern, *mine)
        assert value.shape == tuple(expected.shape)
        assert str(value.dtype).lower() == str(expected.dtype).removeprefix("torch.")
        np.testing.assert_allclose(value.asnumpy(), expected.numpy(), rtol=1e-6)


def test_gradients() -> None:
    x, y = normal(2, 3), normal(3)
    a, b = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    (a.T * b[:, None]).pow(2).sum().backward()
    assert a.grad is not None and b.grad is not None
    gradients = ms.grad(lambda x, y: (einx.multiply("n d, d -> d n", x, y) ** 2).sum(), (0, 1))(
        ms.Tensor(x), ms.Tensor(y)
    )
    np.testing.assert_allclose(gradients[0].asnumpy(), a.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(gradients[1].asnumpy(), b.grad.numpy(), rtol=1e-5)


def test_gradient_of_what_is_taken() -> None:
    """A place that is taken twice gets both gradients."""
    x, places = normal(2, 5, 3), np.array([[1, 1, 4], [0, 2, 2]])
    a = torch.tensor(x, requires_grad=True)
    a[torch.arange(2)[:, None], torch.tensor(places)].pow(3).sum().backward()
    assert a.grad is not None
    mine = ms.grad(lambda x: (einx.get_at("b [n] d, b k -> b k d", x, ms.Tensor(places)) ** 3).sum())(ms.Tensor(x))
    np.testing.assert_allclose(mine.asnumpy(), a.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "pattern", "shapes"),
    [
        ("add", "a, b c", [(2,), (3, 4)]),  # whose axes does the result have?
        ("add", "a b, b a", [(2, 3), (3, 2)]),
        ("add", "a b, a", [(2, 3), (4,)]),
        ("add", "a b, c -> a b", [(2, 3), (4,)]),
        ("add", "a b -> a b", [(2, 3), (4,)]),
        ("add", "a b, b -> a b c", [(2, 3), (3,)]),
        ("sum", "a [b]", [(2, 3)]),
        ("add", "a 2, a 2", [(3, 2), (3, 2)]),
        ("add", "a..., a", [(3,), (3,)]),
        ("get_at", "a b, a -> a", [(2, 3), (2,)]),
        ("get_at", "a [b], a", [(2, 3), (2,)]),
        ("get_at", "a [b], a -> a", [(2, 3), (3,)]),
        ("get_at", "a [b], a -> a b", [(2, 3), (2,)]),
        ("get_at", "a [b c], a -> a", [(2, 3, 4), (2,)]),
        ("get_at", "[a] [b], a -> a", [(2, 3), (2,)]),
        ("get_at", "a [b], [a] -> a", [(2, 3), (2,)]),
        ("get_at", "... [b], a -> a", [(2, 3), (2,)]),
        ("get_at", "(a c) [b], a -> a c", [(4, 3), (2,)]),
    ],
)
def test_wrong_patterns(name: str, pattern: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(EinopsError):
        getattr(einx, name)(pattern, *(ms.Tensor(normal(*shape)) for shape in shapes))
