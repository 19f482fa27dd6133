"""Similarity and distance of vectors, and the losses made of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr

from .loss_reduction import reduced


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """`x1 . x2 / (max(|x1|, eps) max(|x2|, eps))` along `dim`; the shapes broadcast."""
    if x1.shape != x2.shape:
        x1, x2 = x1 + ops.zeros_like(x2), x2 + ops.zeros_like(x1)
    return (_unit(x1, dim, eps) * _unit(x2, dim, eps)).sum(dim)


def _unit(x: Tensor, dim: int, eps: float) -> Tensor:
    squares = (x * x).sum(dim, keepdims=True)
    # where the norm is below eps it is a constant: no gradient, also none of sqrt at 0
    small = squares <= eps * eps
    norm = ops.sqrt(ops.where(small, ops.ones_like(squares), squares))
    return x / ops.where(small, ops.full_like(squares, eps), norm)


def vector_length(x: Tensor, p: float, keepdim: bool = False) -> Tensor:
    """`(sum |x|^p)^(1/p)` along the last axis; the gradient at zero is zero, as in torch."""
    size = ops.abs(x)
    if p == 0.0:
        return (size != 0).astype(x.dtype).sum(-1, keepdims=keepdim)
    if p == 1.0:
        return size.sum(-1, keepdims=keepdim)
    if p == float("inf"):
        return ops.amax(size, -1, keepdim)
    powers = (x * x if p == 2.0 else ops.pow(size, p)).sum(-1, keepdims=keepdim)
    zero = powers == 0
    safe = ops.where(zero, ops.ones_like(powers), powers)
    root = ops.sqrt(safe) if p == 2.0 else ops.pow(safe, 1.0 / p)
    return ops.where(zero, ops.zeros_like(powers), root)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """p-norm of `x1 - x2 + eps` along the last axis."""
    return vector_length(x1 - x2 + eps, float(p), keepdim)


@constexpr
def _pairs(count: int) -> tuple[Tensor, Tensor]:
    rows, columns = np.triu_indices(count, 1)
    return Tensor(rows), Tensor(columns)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """Distances of all pairs of rows of `input` `[n, d]`, `i < j`: `[n (n - 1) / 2]`."""
    if input.shape[0] < 2 or input.shape[1] == 0:
        return ops.zeros((input.shape[0] * (input.shape[0] - 1) // 2,), dtype=input.dtype)
    rows, columns = _pairs(input.shape[0])
    first, second = ops.gather(input, rows, 0), ops.gather(input, columns, 0)
    return vector_length(first - second, float(p))


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`1 - cos` for target 1, `max(0, cos - margin)` for target -1; vectors along the last axis."""
    eps = 1e-12  # torch adds it to the squares
    dot = (input1 * input2).sum(-1)
    squares = ((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)
    cosine = dot / ops.sqrt(squares)
    zeros = ops.zeros_like(cosine)
    losses = ops.where(target == 1, 1 - cosine, zeros) + ops.where(target == -1, ops.relu(cosine - margin), zeros)
    return reduced(losses, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, d(a, p) - d(a, n) + margin)`; with `swap` the nearer of a and p counts for the negative."""
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return reduced(ops.relu(near - far + margin), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_with_distance_loss` with `pairwise_distance`."""
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(ops.relu(near - far + margin), reduction)
