"""Single elements in order along an axis: k-th value, median, mode, running extremes."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .graph import values_indices
from .nan_order import ascending_key, descending_key
from .ordering import sort


def _picked(input: Tensor, places: Tensor, dim: int, keepdim: bool) -> Any:
    """Elements at `places` (with the axis kept), differentiable, and the places."""
    values = ops.gather_elements(input, dim, places)
    if keepdim:
        return values_indices(values, places)
    return values_indices(values.squeeze(dim), places.squeeze(dim))


def _order(input: Tensor, dim: int) -> Tensor:
    return ops.sort(ascending_key(input), dim)[1].astype(ms.int64)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The `k`-th smallest element along `dim`, counted from 1, and its position."""
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    return _picked(input, _order(input, dim).narrow(dim, k - 1, 1), dim, keepdim)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower middle element, with its position along `dim`; over all elements without one. NaN wins."""
    if dim is None:
        return _median(input.reshape(-1), 0, False)[0]
    return _median(input, dim, keepdim)


def _median(input: Tensor, dim: int, keepdim: bool) -> Any:
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    order = _order(input, dim)
    middle = order.narrow(dim, (input.shape[dim] - 1) // 2, 1)
    bad = ops.isnan(input).astype(ms.int32)
    first_bad = ops.argmax(bad, dim, True).astype(ms.int64)
    return _picked(input, ops.where(ops.amax(bad, dim, True) > 0, first_bad, middle), dim, keepdim)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower middle one of the elements that are not NaN."""
    if dim is None:
        return _nanmedian(input.reshape(-1), 0, False)[0]
    return _nanmedian(input, dim, keepdim)


def _nanmedian(input: Tensor, dim: int, keepdim: bool) -> Any:
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    number = (~ops.isnan(input)).astype(ms.int32).sum(dim, keepdims=True)
    middle = ops.maximum((number - 1) // 2, ms.tensor(0, ms.int32)).astype(ms.int64)
    return _picked(input, ops.gather_elements(_order(input, dim), dim, middle), dim, keepdim)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent element along `dim`, the smallest of several, and its last position."""
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    array = np.moveaxis(ops.stop_gradient(input).asnumpy(), dim, -1)
    places = np.apply_along_axis(_last_of_mode, -1, array)
    return _picked(input, Tensor(np.moveaxis(places[..., None], -1, dim).astype(np.int64)), dim, keepdim)


def _last_of_mode(line: Any) -> int:
    values, counts = np.unique(line, return_counts=True)
    return int(np.flatnonzero(line == values[np.argmax(counts)])[-1])


def cummax(input: Tensor, dim: int) -> Any:
    """Running maximum along `dim` and the position where it was last found; NaN wins."""
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    # MindSpore's own gradient of cummax has no CPU kernel
    return _picked(input, ops.cummax(ascending_key(input), dim)[1].astype(ms.int64), dim, True)


def cummin(input: Tensor, dim: int) -> Any:
    """Running minimum along `dim` and the position where it was last found; NaN wins."""
    if input.ndim == 0:
        return values_indices(input, ms.tensor(0, ms.int64))
    return _picked(input, ops.cummin(descending_key(input), dim)[1].astype(ms.int64), dim, True)


def msort(input: Tensor) -> Tensor:
    """Elements in ascending order along the first axis."""
    return input if input.ndim == 0 else sort(input, 0)[0]
