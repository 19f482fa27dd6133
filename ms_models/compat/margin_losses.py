"""Losses of classes and rankings with margins."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops

from .loss_reduction import reduced


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`log(1 + exp(-target input))`, targets 1 and -1."""
    return reduced(ops.log1p(ops.exp(-target * input)), reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`max(0, -target (input1 - input2) + margin)`."""
    return reduced(_positive(-target * (input1 - input2) + margin), reduction)


def _positive(x: Tensor) -> Tensor:
    # torch's clamp(min=0) has gradient 1 at 0, relu has 0
    return ops.where(x >= 0, x, ops.zeros_like(x))


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """`input` for target 1, `max(0, margin - input)` for target -1; other targets get both."""
    zeros = ops.zeros_like(input)
    far = ops.where(target == 1, zeros, _positive(margin - input))
    near = ops.where(target == -1, zeros, input)
    return reduced(near + far, reduction)


def _rows(input: Tensor) -> Tensor:
    return input.reshape(-1, input.shape[-1] if input.ndim > 0 else 1)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean over the wrong classes of `max(0, margin - x[target] + x[class])^p`; `input` `[C]` or `[N, C]`."""
    rows = _rows(input)
    labels = target.reshape(-1, 1).astype(ms.int64)
    classes = rows.shape[1]
    terms = ops.relu(margin - ops.gather_elements(rows, 1, labels) + rows)
    terms = terms if p == 1 else terms * terms
    if weight is not None:
        terms = terms * ops.gather(weight, labels.reshape(-1), 0).expand_dims(-1)
    wrong = (ops.arange(classes).reshape(1, -1) != labels).astype(rows.dtype)
    losses = (terms * wrong).sum(-1) / classes
    return reduced(losses.reshape(target.shape), reduction)


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`sum max(0, 1 - (x[label] - x[class])) / C` over labels (those before the first -1) and other classes."""
    rows = _rows(input)
    labels = target.reshape(rows.shape).astype(ms.int64)
    valid = ops.cumsum((labels < 0).astype(ms.int32), -1) == 0
    safe = ops.where(valid, labels, ops.zeros_like(labels))
    classes = rows.shape[1]
    numbers = ops.arange(classes)
    is_label = ((safe.expand_dims(-1) == numbers) & valid.expand_dims(-1)).astype(ms.int32).sum(1) > 0
    chosen = ops.gather_elements(rows, 1, safe)
    terms = ops.relu(1 - (chosen.expand_dims(-1) - rows.expand_dims(1)))  # [N, labels, classes]
    counted = valid.expand_dims(-1).astype(rows.dtype) * (1 - is_label.astype(rows.dtype)).expand_dims(1)
    losses = (terms * counted).sum(-1).sum(-1) / classes
    return reduced(losses.reshape(input.shape[:-1]), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross-entropy of logits, averaged over the last axis."""
    size = ops.where(input < 0, -input, input)  # the derivative of `abs` is 0 at 0, where -1/2 is wanted
    losses = ops.relu(-input) + ops.log1p(ops.exp(-size)) + (1 - target) * input
    if weight is not None:
        losses = losses * weight
    return reduced(losses.mean(-1), reduction)
