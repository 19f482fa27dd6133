"""Samples from relaxed categorical distributions."""

from __future__ import annotations

from mindspore import Tensor, ops


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """Softmax along `dim` of the logits with Gumbel noise over `tau` (Jang et al., 2017).

    With `hard` the result is one-hot at the largest element, with the gradient of the softmax.
    """
    uniform = ops.maximum(ops.rand_like(logits), ops.full_like(logits, 1e-7))
    soft = ops.softmax((logits - ops.log(-ops.log(uniform))) / tau, dim)
    if not hard:
        return soft
    places = ops.arange(soft.shape[dim]).reshape([-1 if i == dim % soft.ndim else 1 for i in range(soft.ndim)])
    chosen = (places == ops.argmax(soft, dim, True)).astype(soft.dtype)
    return chosen - ops.stop_gradient(soft) + soft
