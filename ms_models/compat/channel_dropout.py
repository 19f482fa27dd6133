"""Dropout of whole channels and dropout that keeps mean and variance of SELU's output."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Tensor, ops

from .layers import dropout

_SATURATION = -1.7580993408473766  # -scale * alpha of SELU


def channel_dropout(input: Tensor, p: float = 0.5, training: bool = True, rank: int = 2) -> Tensor:
    """Zeroes channels with probability `p`; `input` is `[N, C, ...]`, or `[C, ...]` with `rank` spatial axes."""
    if not training or p == 0.0:
        return input
    return input * dropout(_ones(input, rank), p, True)


def _ones(input: Tensor, rank: int) -> Tensor:
    lead = 1 if input.ndim == rank + 1 else 2
    shape: Sequence[int] = (*input.shape[:lead], *[1] * (input.ndim - lead))
    return ops.ones(tuple(shape), dtype=input.dtype)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """Elements become SELU's saturation value with probability `p`; an affine map restores mean and variance."""
    if not training or p == 0.0 or input.size == 0:
        return input
    return _affine(input, dropout(ops.ones_like(input), p, True) * (1 - p), p)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of `[N, C, ...]`."""
    if not training or p == 0.0 or input.size == 0:
        return input
    return _affine(input, dropout(_ones(input, input.ndim), p, True) * (1 - p), p)


def _affine(input: Tensor, kept: Tensor, p: float) -> Tensor:
    if p == 1.0:
        return input * 0.0
    a = ((1 - p) * (1 + p * _SATURATION**2)) ** -0.5
    b = -a * p * _SATURATION
    return (input * kept + (1 - kept) * _SATURATION) * a + b
