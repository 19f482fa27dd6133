"""Functions with values and positions: topk, sort, extremes along an axis. Positions are int64, as in torch."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .graph import Extremes, in_graph, values_indices
from .nan_order import ascending_key, descending_key, nan_wins


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The `k` largest (smallest) elements along `dim`, in order, and their positions; NaN is the largest."""
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    if k == 0 or 0 in input.shape:
        shape = list(input.shape)
        shape[dim] = k
        return values_indices(ops.zeros(tuple(shape), input.dtype), ops.zeros(tuple(shape), ms.int64))
    indices = ops.topk(ascending_key(input), k, dim, largest, sorted)[1].astype(ms.int64)
    return values_indices(ops.gather_elements(input, dim, indices), indices)


def sort(input: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Elements in order along `dim`, NaN after all others, and their positions."""
    if input.ndim == 0 or 0 in input.shape:
        return values_indices(input, ops.zeros(input.shape, ms.int64))
    indices = ops.sort(ascending_key(input), dim, descending)[1].astype(ms.int64)
    return values_indices(ops.gather_elements(input, dim, indices), indices)


def argsort(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Positions that put the elements along `dim` in order."""
    return sort(input, dim, descending)[1]


def max_along(input: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Largest element along `dim` and its position; NaN wins."""
    return _picked(input, argmax(input, dim, True), dim, keepdim)


def min_along(input: Tensor, dim: int, keepdim: bool = False) -> Any:
    """Smallest element along `dim` and its position; NaN wins."""
    return _picked(input, argmin(input, dim, True), dim, keepdim)


def _picked(input: Tensor, places: Tensor, dim: int, keepdim: bool) -> Any:
    if input.ndim == 0:
        return values_indices(input, places)
    values = ops.gather_elements(input, dim, places)
    if keepdim:
        return values_indices(values, places)
    return values_indices(values.squeeze(dim), places.squeeze(dim))


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the largest element, along `dim` or in the flattened input; NaN wins."""
    return _place(ascending_key(input), dim, keepdim, True)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Position of the smallest element, along `dim` or in the flattened input; NaN wins."""
    return _place(descending_key(input), dim, keepdim, False)


def _place(key: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    if key.ndim == 0:
        return ms.tensor(0, ms.int64)
    find = ops.argmax if largest else ops.argmin
    if dim is None:
        place = find(key.reshape(-1), 0).astype(ms.int64)
        return place.reshape((1,) * key.ndim) if keepdim else place
    return find(key, dim, keepdim).astype(ms.int64)


def amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """Largest element over axes, all without `dim`; NaN wins. Equal ones share the gradient evenly, as in torch."""
    axes = _axes(input, dim)
    return nan_wins(input, ops.amax(input, axes, keepdim), axes, keepdim) if axes else input


def amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """Smallest element over axes, all without `dim`; NaN wins. Equal ones share the gradient evenly, as in torch."""
    axes = _axes(input, dim)
    return nan_wins(input, ops.amin(input, axes, keepdim), axes, keepdim) if axes else input


def _axes(input: Tensor, dim: Any) -> tuple[int, ...]:
    """Axes of a reduction, none for a scalar.

    Raises:
        ValueError: an axis is empty, so there is no extreme.
    """
    axes = _every(input, dim)
    for axis in axes:
        if input.shape[axis] == 0:
            raise ValueError(f"there is no extreme along axis {axis}, which has no elements")
    return axes


def _every(input: Tensor, dim: Any) -> tuple[int, ...]:
    if input.ndim == 0:
        return ()
    if isinstance(dim, int):
        return (dim,)
    if dim is None or len(dim) == 0:
        return tuple(range(input.ndim))
    return tuple(dim)


def maximum(input: Tensor, dim_or_other: Any, keepdim: bool = False) -> Any:
    """`max_along` for an axis, element-wise maximum for a tensor: for calls that do not show which one they mean."""
    if isinstance(dim_or_other, Tensor):
        return _larger(input, dim_or_other, True)
    return max_along(input, dim_or_other, keepdim)


def minimum(input: Tensor, dim_or_other: Any, keepdim: bool = False) -> Any:
    """`min_along` for an axis, element-wise minimum for a tensor: for calls that do not show which one they mean."""
    if isinstance(dim_or_other, Tensor):
        return _larger(input, dim_or_other, False)
    return min_along(input, dim_or_other, keepdim)


def _larger(input: Tensor, other: Tensor, largest: bool) -> Tensor:
    """Element-wise maximum or minimum; NaN in either operand wins."""
    if 0 in input.shape or 0 in other.shape:
        return input + other
    result = ops.maximum(input, other) if largest else ops.minimum(input, other)
    if not result.is_floating_point():
        return result
    bad = ops.logical_or(ops.isnan(input), ops.isnan(other))
    return ops.where(bad, ops.full_like(result, float("nan")), result)


def aminmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Smallest and largest element, of all or along `dim`; NaN wins both."""
    low, high = amin(input, dim, keepdim), amax(input, dim, keepdim)
    if in_graph():  # @jit.cond: True
        return low, high
    return Extremes(low, high)
