"""The categorical distribution."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .random import default_generator


class Categorical:
    """Numbers 0 .. n-1 with given probabilities `[..., n]`, which are made to sum to 1, or logits."""

    def __init__(self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: Any = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        if probs is not None:
            self.probs = probs / probs.sum(-1, keepdims=True)
            eps = float(np.finfo(np.float32).eps)
            self.logits = ops.log(ops.clamp(self.probs, eps, 1 - eps))
        elif logits is not None:
            self.logits = ops.log_softmax(logits, -1)
            self.probs = ops.softmax(self.logits, -1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws of shape `sample_shape + [...]`, int64, without gradient."""
        weights = self.probs.asnumpy().astype(np.float64)
        steps = np.cumsum(weights, -1)
        drawn = default_generator.numpy.random((*tuple(sample_shape), *weights.shape[:-1], 1)) * steps[..., -1:]
        return Tensor(np.minimum((drawn >= steps).sum(-1), weights.shape[-1] - 1), ms.int64)

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the probability of each number; differentiable in the probabilities."""
        shape = np.broadcast_shapes(tuple(value.shape), tuple(self.logits.shape[:-1]))
        logits = ops.broadcast_to(self.logits, (*shape, self.logits.shape[-1]))
        index = ops.broadcast_to(value, shape).astype(ms.int64).expand_dims(-1)
        return ops.gather_elements(logits, len(shape), index).squeeze(-1)

    def entropy(self) -> Tensor:
        """Entropy in nats."""
        return -(self.logits * self.probs).sum(-1)
