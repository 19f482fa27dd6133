"""Cross-entropy and negative log-likelihood with torch's reductions, ignored labels and label smoothing."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops

from .activations import log_softmax
from .module import Module
from .products import matmul


def _reduce(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return losses.sum() / weights.sum()
    raise ValueError(f"{reduction} is not a valid value for reduction")


def _class_last(input: Tensor) -> Tensor:
    """`[N, C, d1, ...]` to `[N, d1, ..., C]`; `[C]` stays."""
    return input if input.ndim < 3 else ops.movedim(input, 1, input.ndim - 1)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Negative log-likelihood.

    Args:
        input: log-probabilities `[C]`, `[N, C]` or `[N, C, d1, ...]`.
        target: class numbers `[]`, `[N]` or `[N, d1, ...]`.
        weight: weight of each class `[C]`.
        ignore_index: label that counts for nothing.
        reduction: `mean` divides by the sum of the weights of the counted labels (NaN without any); or `sum`, `none`.
    """
    rows = _class_last(input)
    counted = target != ignore_index
    safe = ops.where(counted, target, ops.zeros_like(target)).astype(ms.int64)
    weights = counted.astype(input.dtype)
    if weight is not None:
        weights = weights * ops.gather(weight, safe, 0)
    picked = ops.gather_elements(rows, rows.ndim - 1, safe.expand_dims(-1)).squeeze(-1)
    return _reduce(-picked * weights, weights, reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of logits.

    Args:
        input: logits `[C]`, `[N, C]` or `[N, C, d1, ...]`.
        target: class numbers `[]`, `[N]` or `[N, d1, ...]`, or probabilities of input's shape.
        weight: weight of each class `[C]`.
        ignore_index: label that counts for nothing (class numbers only).
        reduction: `mean`, `sum` or `none`; see `nll_loss`.
        label_smoothing: share of the target spread evenly over all classes.
    """
    rows = _class_last(input)
    log_p = log_softmax(rows, -1)
    classes = rows.shape[-1]
    if target.shape == input.shape and target.dtype in (ms.float16, ms.bfloat16, ms.float32, ms.float64):
        wanted = _class_last(target) * (1 - label_smoothing) + label_smoothing / classes
        terms = log_p * wanted if weight is None else log_p * wanted * weight
        losses = -terms.sum(-1)
        count = ops.ones_like(losses)  # torch divides by the number of rows, whatever the class weights
        return _reduce(losses, count, reduction)

    counted = target != ignore_index
    safe = ops.where(counted, target, ops.zeros_like(target)).astype(ms.int64)
    weights = counted.astype(rows.dtype)
    picked = ops.gather_elements(log_p, rows.ndim - 1, safe.expand_dims(-1)).squeeze(-1)
    if weight is not None:
        weights = weights * ops.gather(weight, safe, 0)
    losses = -picked * weights
    if label_smoothing > 0.0:
        spread = log_p.sum(-1) if weight is None else (log_p * weight).sum(-1)
        spread = -spread * counted.astype(rows.dtype) / classes
        losses = losses * (1 - label_smoothing) + spread * label_smoothing
    return _reduce(losses, weights, reduction)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`cross_entropy` of the logits of a linear layer.

    Args:
        input: `[features]` or `[N, features]`.
        linear_weight: `[C, d1, ..., features]`.
        linear_bias: `[C, d1, ...]`.
    """
    outputs = linear_weight.shape[:-1]
    logits = matmul(input, linear_weight.reshape((-1, linear_weight.shape[-1])).swapaxes(0, 1))
    logits = logits.reshape((*input.shape[:-1], *outputs))
    if linear_bias is not None:
        logits = logits + linear_bias
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(logits, target, weight, ignored, reduction, label_smoothing)


class CrossEntropyLoss(Module):
    """`cross_entropy` as a module."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(Module):
    """`nll_loss` as a module."""

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def construct(self, input: Tensor, target: Tensor) -> Tensor:
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction)
