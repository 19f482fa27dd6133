"""Losses between an input and a target of its shape, with torch's formulas."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .loss_reduction import reduced


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`|input - target|`."""
    return reduced(ops.abs(input - target), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """`d^2 / (2 beta)` below `beta`, `|d| - beta / 2` above."""
    size = ops.abs(input - target)
    if beta == 0.0:
        return reduced(size, reduction)
    return reduced(ops.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta), reduction)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """`d^2 / 2` up to `delta`, `delta (|d| - delta / 2)` above."""
    size = ops.abs(input - target)
    return reduced(ops.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction)


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """`target (log target - input)`, 0 where target is 0; `batchmean` divides the sum by the first axis."""
    if log_target:
        losses = ops.exp(target) * (target - input)
    else:
        losses = xlogy_self(target) - target * input
    if reduction == "batchmean":
        return losses.sum() / input.shape[0] if input.ndim > 0 else losses
    return reduced(losses, reduction)


def xlogy_self(x: Tensor) -> Tensor:
    """`x log x`, 0 at 0 and NaN below."""
    zero = x == 0
    return ops.where(zero, ops.zeros_like(x), x * ops.log(ops.where(zero, ops.ones_like(x), x)))


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """`exp(input) - target input`, or `input - target log(input + eps)`; `full` adds Stirling's term above 1."""
    losses = ops.exp(input) - target * input if log_input else input - target * ops.log(input + eps)
    if full:
        large = target > 1
        safe = ops.where(large, target, ops.ones_like(target))
        stirling = safe * ops.log(safe) - safe + 0.5 * ops.log(2 * math.pi * safe)
        losses = losses + ops.where(large, stirling, ops.zeros_like(stirling))
    return reduced(losses, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """`(log v + (input - target)^2 / v) / 2` with `v = max(var, eps)`, whose bound gives `var` no gradient cut.

    Raises:
        ValueError: the shape of `var` is neither that of `input`, nor that without or with one in the last axis.
    """
    if not isinstance(var, Tensor):
        var = ops.ones(input.shape, dtype=input.dtype) * var
    elif var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.expand_dims(-1)
        elif input.ndim != var.ndim or sum(a != b for a, b in zip(input.shape, var.shape, strict=True)) != 1:
            raise ValueError(f"gaussian_nll_loss: var of shape {var.shape} does not fit input of shape {input.shape}")
    bounded = var + ops.stop_gradient(ops.relu(eps - var))  # torch clamps without a gradient of the clamp
    losses = 0.5 * (ops.log(bounded) + (input - target) * (input - target) / bounded)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return reduced(losses, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`(1 - t) x + (1 + (pos_weight - 1) t) log(1 + exp(-x))`, computed without overflow."""
    size = ops.where(input < 0, -input, input)  # the derivative of `abs` is 0 at 0, that of the tail -1/2
    tail = ops.log1p(ops.exp(-size)) + ops.relu(-input)
    if pos_weight is None:
        losses = (1 - target) * input + tail
    else:
        losses = (1 - target) * input + ((pos_weight - 1) * target + 1) * tail
    return reduced(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """`-(t log x + (1 - t) log(1 - x))`, logarithms at least -100."""
    losses = -target * _log(input) - (1 - target) * _log(1 - input)
    return reduced(losses if weight is None else losses * weight, reduction)


def _log(x: Tensor) -> Tensor:
    return ops.maximum(ops.log(x), Tensor(-100.0, ms.float32).astype(x.dtype))
