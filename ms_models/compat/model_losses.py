"""Losses of transformers' heads, by the name of the head's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .losses import cross_entropy
from .regression_losses import binary_cross_entropy_with_logits


def fixed_cross_entropy(
    source: Tensor, target: Tensor, num_items_in_batch: Any = None, ignore_index: int = -100, **kwargs: Any
) -> Tensor:
    """Mean over the labels that count, or their sum over `num_items_in_batch`."""
    if num_items_in_batch is None:
        return cross_entropy(source, target, ignore_index=ignore_index)
    return cross_entropy(source, target, ignore_index=ignore_index, reduction="sum") / num_items_in_batch


def ForCausalLMLoss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Every position predicts the label of the next one; the last predicts nothing."""
    if shift_labels is None:
        assert labels is not None
        nothing = ops.full((*labels.shape[:-1], 1), ignore_index, dtype=ms.int64).astype(labels.dtype)
        shift_labels = ops.cat((labels[..., 1:], nothing), -1) if labels.shape[-1] > 1 else nothing
    rows = logits.float().reshape(-1, vocab_size)
    return fixed_cross_entropy(rows, shift_labels.reshape(-1), num_items_in_batch, ignore_index)


def ForMaskedLMLoss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    """Every position predicts its own label."""
    rows = logits.float().reshape(-1, vocab_size)
    return fixed_cross_entropy(rows, labels.reshape(-1), num_items_in_batch, ignore_index)


def ForTokenClassification(logits: Tensor, labels: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """A class for every position."""
    return fixed_cross_entropy(logits.float().reshape(-1, config.num_labels), labels.reshape(-1), **kwargs)


def ForSequenceClassificationLoss(labels: Tensor, pooled_logits: Tensor, config: Any, **kwargs: Any) -> Tensor:
    """By `config.problem_type`, which the number of labels and their type decide where it is None."""
    if config.problem_type is None:
        single = labels.dtype in (ms.int64, ms.int32)
        several = "single_label_classification" if single else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else several
    if config.problem_type == "regression":
        one = config.num_labels == 1
        difference = pooled_logits.reshape(-1) - labels.reshape(-1) if one else pooled_logits - labels
        return (difference * difference).mean()
    if config.problem_type == "single_label_classification":
        return fixed_cross_entropy(pooled_logits.reshape(-1, config.num_labels), labels.reshape(-1), **kwargs)
    if config.problem_type == "multi_label_classification":
        return binary_cross_entropy_with_logits(pooled_logits, labels)
    raise RuntimeError(f"Invalid problem type: {config.problem_type}")


def ForQuestionAnsweringLoss(
    start_logits: Tensor, end_logits: Tensor, start_positions: Any, end_positions: Any, **kwargs: Any
) -> Tensor | None:
    """Mean of the losses of both ends; a position behind the text counts for nothing."""
    if start_positions is None or end_positions is None:
        return None
    length = start_logits.shape[1]
    losses = []
    for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
        positions = positions.squeeze(-1) if positions.ndim > 1 else positions
        losses.append(fixed_cross_entropy(logits, positions.clamp(0, length), ignore_index=length, **kwargs))
    return (losses[0] + losses[1]) / 2


LOSS_MAPPING: dict[str, Callable[..., Any]] = {
    "ForCausalLM": ForCausalLMLoss,
    "ForConditionalGeneration": ForCausalLMLoss,
    "ForMaskedLM": ForMaskedLMLoss,
    "ForQuestionAnswering": ForQuestionAnsweringLoss,
    "ForSequenceClassification": ForSequenceClassificationLoss,
    "ForImageClassification": ForSequenceClassificationLoss,
    "ForTokenClassification": ForTokenClassification,
}
"""End of the class's name -> loss."""
