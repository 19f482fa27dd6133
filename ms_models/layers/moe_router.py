"""Routers: which experts compute a token, and with which weights.

A router is a Cell from hidden states `[..., M]` to `(weights [..., k] fp32, chosen [..., k] int32)`: `chosen` are k
different experts of a token, counted over all ranks, in any order; `weights` scale what they return and carry the
router's gradient. `Experts` asks for nothing else, so a family may bring a router of its own.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops


def pick(scores: Tensor, chosen: Tensor) -> Tensor:
    """Scores `[..., k]` of the `chosen` experts `[..., k]` among those `[..., experts]` of all; has a gradient."""
    flat, index = scores.reshape(-1, scores.shape[-1]), chosen.reshape(-1, chosen.shape[-1])
    return ops.gather_elements(flat, 1, index).reshape(chosen.shape)


def best(scores: Tensor, count: int) -> Tensor:
    """Indices `[..., count]` int32 of the highest scores `[..., experts]`; has no gradient."""
    return ops.topk(ops.stop_gradient(scores), count)[1].astype(ms.int32)


def shares(weights: Tensor) -> Tensor:
    """Weights divided by their sum over the last axis."""
    return weights / weights.sum(-1, keepdims=True)


class SoftmaxRouter(nn.Cell):
    """The likeliest experts under a softmax over all of them, in fp32.

    Args:
        logits: a linear layer without bias from the model's width to the number of experts.
        count: experts per token.
        renormalise: whether the weights of a token are divided by their sum.
    """

    def __init__(self, logits: nn.Cell, count: int, *, renormalise: bool) -> None:
        super().__init__()
        self.weight = logits.weight  # named where it is met first: `gate.weight`, not `gate.logits.weight`
        self.logits = logits
        self.count = count
        self.renormalise = renormalise

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # In fp32 from the logits on: rounding them lets experts change places.
        probabilities = ops.softmax(self.logits(x.astype(ms.float32)), -1)
        chosen = best(probabilities, self.count)
        weights = pick(probabilities, chosen)
        return shares(weights) if self.renormalise else weights, chosen
