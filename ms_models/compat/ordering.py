"""Functions with values and positions: topk, sort, extremes along an axis. Positions are int64, as in torch."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .graph import Extremes, in_graph, values_indices


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The `k` largest (smallest) elements along `dim`, in order, and their positions."""
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    values, indices = ops.topk(input, k, dim, largest, sorted)
    return values_indices(values, indices.astype(ms.int64))


def sort(input: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Elements in order along `dim`, and their positions."""
    if input.ndim == 0 or 0 in input.shape:
        return values_indices(input, ops.zeros(input.shape, ms.int64))
    values, indices = ops.sort(input, dim, descending)
    return values_indices(values, indices.astype(ms.int64))


def argsort(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Positions that put the elements along `dim` in order."""
    return sort(input, dim, descending)[1]


def max_along(input: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Largest element along `dim` and its position."""
    values, indices = ops.max(input, dim, keepdim)
    return values_indices(values, indices.astype(ms.int64))


def min_along(input: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Smallest element along `dim` and its position."""
    values, indices = ops.min(input, dim, keepdim)
    return values_indices(values, indices.astype(ms.int64))


def maximum(input: Tensor, dim_or_other: Any, keepdim: bool = False) -> Any:
    """`max_along` for an axis, element-wise maximum for a tensor: for calls that do not show which one they mean."""
    if isinstance(dim_or_other, Tensor):
        return ops.maximum(input, dim_or_other)
    return max_along(input, dim_or_other, keepdim)


def minimum(input: Tensor, dim_or_other: Any, keepdim: bool = False) -> Any:
    """`min_along` for an axis, element-wise minimum for a tensor: for calls that do not show which one they mean."""
    if isinstance(dim_or_other, Tensor):
        return ops.minimum(input, dim_or_other)
    return min_along(input, dim_or_other, keepdim)


def aminmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Smallest and largest element, of all or along `dim`."""
    if dim is None:
        low, high = ops.amin(input), ops.amax(input)
    else:
        low, high = ops.amin(input, dim, keepdim), ops.amax(input, dim, keepdim)
    if in_graph():  # @jit.cond: True
        return low, high
    return Extremes(low, high)
