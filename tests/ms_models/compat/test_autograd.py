"""Switching gradients off and on cuts the same paths as in torch."""

from __future__ import annotations

import contextlib
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import ops

from ms_models.compat import autograd
from ms_models.compat.backward import backward_of

X = np.arange(3, dtype=np.float32)


class Ignored(contextlib.ContextDecorator):
    """Switches that do nothing."""

    def __init__(self, mode: bool = True) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


Ignored.set_grad_enabled = Ignored.no_grad = Ignored.enable_grad = Ignored


def gradients(function: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The gradient of `function(x, switches)` in torch and in MindSpore."""
    x = torch.from_numpy(X.copy()).requires_grad_()
    function(x, torch).backward()
    assert x.grad is not None
    return x.grad.numpy(), ms.grad(lambda x: function(x, autograd))(ms.Tensor(X)).asnumpy()


def partly(x: Any, switches: Any) -> Any:
    with switches.set_grad_enabled(False):
        cut = x * x
    with switches.set_grad_enabled(True):
        kept = x * 5
    return (cut + kept + x).sum()


def inside(x: Any, switches: Any) -> Any:
    with switches.no_grad():
        cut = x * 3
        with switches.enable_grad():
            kept = x * x
    return (cut + kept + x).sum()


def decorated(x: Any, switches: Any) -> Any:
    @switches.set_grad_enabled(False)
    def cut(x: Any) -> Any:
        return x * 7

    return (cut(x) + x * x).sum()


def called(x: Any, switches: Any) -> Any:
    switches.set_grad_enabled(False)
    cut = x * 2
    switches.set_grad_enabled(True)
    return (cut + x * 3).sum()


@pytest.mark.parametrize("function", [partly, inside, decorated, called])
def test_the_same_paths_are_cut(function: Any) -> None:
    expected, actual = gradients(function)
    # products and sums of small whole numbers: exact in float32
    assert np.array_equal(expected, actual)
    # without the switches the gradient is another one
    assert not np.array_equal(ms.grad(lambda x: function(x, Ignored))(ms.Tensor(X)).asnumpy(), actual)
    assert autograd.is_grad_enabled() and torch.is_grad_enabled()


def test_an_error_inside_switches_back() -> None:
    with pytest.raises(ZeroDivisionError), autograd.set_grad_enabled(False):
        _ = 1 / 0
    assert autograd.is_grad_enabled()


def test_only_a_parameter_asks_for_a_gradient() -> None:
    weight = ms.Parameter(ms.Tensor(X))
    assert not autograd.requires_grad_(weight, False).requires_grad
    assert autograd.requires_grad_(weight) is weight and weight.requires_grad
    with pytest.raises(TypeError, match="only a Parameter"):
        autograd.requires_grad_(ms.Tensor(X))


def test_a_forward_that_raises_leaves_the_next_gradient_alone() -> None:
    weight = ms.Parameter(ms.Tensor([1.0, 2.0, 3.0]), name="weight")
    bias = ms.Parameter(ms.Tensor([0.0, 0.0, 0.0]), name="bias")
    x = ms.Tensor([[1.0, 2.0, 4.0]])

    def raises() -> ms.Tensor:
        (x * weight).sum()
        raise ValueError("a batch to be skipped")

    # The gradient of a gradient, which MindSpore would take it for, is one that its LayerNorm does not have.
    def loss() -> ms.Tensor:
        return (ops.LayerNorm(1, 1, 1e-5)(x, weight, bias)[0] * weight).sum()

    with pytest.raises(ValueError, match="skipped"):
        backward_of(raises, weight, bias)()
    backward_of(loss, weight, bias)()
    normed = (x - x.mean()) / ops.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    assert np.allclose(weight.grad.asnumpy(), (2 * normed * weight).asnumpy()[0], atol=1e-5)
