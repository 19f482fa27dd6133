"""Switching the recording of gradients off; naming parts of a program."""

from __future__ import annotations

import contextlib

from mindspore import _no_grad

__all__ = ["inference_mode", "no_grad", "record_function"]

no_grad = _no_grad
"""Context and decorator: what is computed inside gets no gradient."""


def inference_mode(mode: bool = True) -> contextlib.AbstractContextManager[None]:
    """`no_grad`, or nothing for `mode=False`; context and decorator."""
    if callable(mode):  # used as @inference_mode without brackets
        return no_grad()(mode)
    return no_grad() if mode else contextlib.nullcontext()


class record_function(contextlib.ContextDecorator):
    """Names a part of a program for torch's profiler; here the part only runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> record_function:
        return self

    def __exit__(self, *exc: object) -> None:
        return None
