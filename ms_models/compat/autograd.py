"""Switching the recording of gradients off and on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import _no_grad
from mindspore.graph.api import _pynative_executor

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "requires_grad_", "set_grad_enabled"]

no_grad = _no_grad
"""Context and decorator: what is computed inside gets no gradient."""


def inference_mode(mode: bool = True) -> contextlib.AbstractContextManager[None]:
    """`no_grad`, or nothing for `mode=False`; context and decorator."""
    if callable(mode):  # used as @inference_mode without brackets
        return no_grad()(mode)
    return no_grad() if mode else contextlib.nullcontext()


def is_grad_enabled() -> bool:
    """Whether the next operation may get a gradient."""
    return bool(_pynative_executor.enable_grad())


class set_grad_enabled:
    """Switches gradients at once; as a context it switches back at the end, as a decorator it holds for each call."""

    def __init__(self, mode: bool) -> None:
        self.before, self.mode = is_grad_enabled(), bool(mode)
        _pynative_executor.set_enable_grad(self.mode)

    def __enter__(self) -> None:
        _pynative_executor.set_enable_grad(self.mode)

    def __exit__(self, *exc: object) -> None:
        _pynative_executor.set_enable_grad(self.before)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        _pynative_executor.set_enable_grad(self.before)
        mode = self.mode

        @functools.wraps(function)
        def switched(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(mode):
                return function(*args, **kwargs)

        return switched


class enable_grad(contextlib.ContextDecorator):
    """Switches gradients on again inside of `no_grad`; a context and a decorator."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        return made if function is None else made(function)  # used as @enable_grad without brackets

    def _recreate_cm(self) -> Any:
        return type(self)()

    def __enter__(self) -> None:
        self.before = is_grad_enabled()
        _pynative_executor.set_enable_grad(True)

    def __exit__(self, *exc: object) -> None:
        _pynative_executor.set_enable_grad(self.before)


def requires_grad_(tensor: ms.Tensor, requires_grad: bool = True) -> ms.Tensor:
    """Freeze a parameter or make it trainable; gives the tensor back.

    Raises:
        TypeError: a tensor that is no parameter is to get a gradient.
    """
    if isinstance(tensor, ms.Parameter):
        tensor.requires_grad = bool(requires_grad)
    elif requires_grad:
        raise TypeError(
            "only a Parameter can ask for a gradient; make it one, or differentiate a function of this tensor with "
            "mindspore.grad"
        )
    return tensor
