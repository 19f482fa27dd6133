"""Switching the recording of gradients off."""

from __future__ import annotations

import contextlib

from mindspore import _no_grad

__all__ = ["inference_mode", "no_grad"]

no_grad = _no_grad
"""Context and decorator: what is computed inside gets no gradient."""


def inference_mode(mode: bool = True) -> contextlib.AbstractContextManager[None]:
    """`no_grad`, or nothing for `mode=False`; context and decorator."""
    if callable(mode):  # used as @inference_mode without brackets
        return no_grad()(mode)
    return no_grad() if mode else contextlib.nullcontext()
