"""Label smoothing on the logits of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops


@dataclass
class LabelSmoother:
    """`(1 - epsilon) * nll + epsilon * mean over the classes of -log p`, over labels that are not `ignore_index`."""

    epsilon: float = 0.1
    ignore_index: int = -100

    def __call__(
        self, model_output: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        """Loss of logits `[..., classes]` with labels `[...]`; `shift_labels` predicts each label from the one before.

        The sums are divided by `num_items_in_batch`, or by the number of labels that count.
        """
        logits = model_output["logits"] if isinstance(model_output, dict) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        costs = -ops.log_softmax(logits, -1)
        if labels.ndim == costs.ndim - 1:
            labels = labels.expand_dims(-1)
        counts = labels != self.ignore_index
        chosen = ops.gather_elements(costs, costs.ndim - 1, ops.maximum(labels, 0).astype(ms.int64))
        weights = counts.astype(costs.dtype)
        total = counts.astype(ms.int64).sum() if num_items_in_batch is None else num_items_in_batch
        likelihood = ops.where(counts, chosen, ops.zeros_like(chosen)).sum() / total
        over_classes = costs.astype(ms.float32).sum(-1, keepdims=True)
        smoothed = (over_classes * weights).sum() / (total * costs.shape[-1])
        return (1 - self.epsilon) * likelihood + self.epsilon * smoothed
