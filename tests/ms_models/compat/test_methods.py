"""The question whether an object is a tensor: eagerly with any object, and settled when a graph is compiled."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops

from ms_models.compat import methods


class Other:
    def size(self, dim: int) -> int:
        return 100 + dim


def rows(x):  # type: ignore[no-untyped-def]
    return methods.if_tensor(x, lambda t: t.shape[0], lambda t: t.size(0))


def scaled(x: ms.Tensor) -> ms.Tensor:
    """What the converter writes, in both forms."""
    n = x.shape[0] if isinstance(x, ms.Tensor) else x.size(0)
    turned = methods.if_tensor(x + 1, lambda t: ops.mean(t, 0), lambda t: t.mean(dim=0))
    return turned * n + methods.if_tensor(x * 2, lambda t: t.swapaxes(0, 1), lambda t: t.transpose(0, 1)).sum()


def test_every_kind_takes_its_own_form() -> None:
    assert rows(ms.Tensor(np.zeros((3, 2), np.float32))) == 3
    assert rows(Other()) == 100


def test_cells_may_take_the_form_of_tensors() -> None:
    for native in (ms.Tensor([1.0]), ms.nn.Dense(2, 2)):
        assert methods.if_tensor_or_cell(native, lambda t: t, lambda t: t.cuda()) is native
    assert methods.if_tensor_or_cell(Other(), lambda t: 0, lambda t: t.size(1)) == 101


def test_the_receiver_is_computed_once() -> None:
    seen: list[int] = []

    def make() -> Other:
        seen.append(1)
        return Other()

    assert methods.if_tensor(make(), lambda t: t.shape[0], lambda t: t.size(1)) == 101
    assert seen == [1]


def test_both_forms_compile() -> None:
    x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    expected = (x.asnumpy() + 1).mean(0) * 3 + 2 * x.asnumpy().sum()
    np.testing.assert_allclose(scaled(x).asnumpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(ms.jit(scaled)(x).asnumpy(), expected, rtol=1e-6)
    gradient = ms.grad(lambda x: ms.jit(scaled)(x).sum())(x)
    np.testing.assert_allclose(gradient.asnumpy(), np.full((3, 2), 5.0), rtol=1e-6)
