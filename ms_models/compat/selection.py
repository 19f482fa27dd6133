"""Picking elements with torch's arguments: positions of any integer type, scalars, empty slices, broadcast masks."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements at the positions `index` along `dim`."""
    places = index.astype(ms.int64)
    if 0 in index.shape:
        return ops.zeros(index.shape, dtype=input.dtype) + input.sum() * 0
    if input.ndim == index.ndim == 0:
        return input
    if input.ndim == 0:
        return ops.gather_elements(input.reshape(1), 0, places)
    if index.ndim == 0:
        return ops.gather_elements(input, dim, places.reshape(1)).reshape(())
    return ops.gather_elements(input, dim, places)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices at the positions `index` along `dim`."""
    if input.ndim == 0:
        return input
    return ops.index_select(input, dim, index.reshape(-1))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Elements where the mask holds, as one row; both are broadcast to their common shape."""
    shape = np.broadcast_shapes(input.shape, mask.shape)
    return ops.masked_select(ops.broadcast_to(input, shape), ops.broadcast_to(mask, shape))


def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` positions from `start`, a number or a tensor of one, which may count from the end."""
    size = input.shape[dim]
    first = int(start.item()) if isinstance(start, Tensor) else start
    first = first + size if first < 0 else first
    if first < 0 or length < 0 or first + length > size:
        raise ValueError(f"narrow: {length} positions from {start} do not lie in an axis of {size}")
    if length > 0:
        return ops.narrow(input, dim, first, length)
    shape = list(input.shape)
    shape[dim] = 0
    return ops.zeros(tuple(shape), dtype=input.dtype) + input.sum() * 0


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` positions of elements that are not zero, one per row; missing rows hold `fill_value`."""
    found = np.argwhere(input.asnumpy())[:size].reshape(-1, input.ndim)
    rows = np.full((size, input.ndim), fill_value, np.int64)
    rows[: len(found)] = found
    return Tensor(rows)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Elements, or slices along `dim`, without repetitions of the one before; on request where they went, how often."""
    array = input.asnumpy()
    lines = array.reshape(-1) if dim is None else np.moveaxis(array, dim, 0)
    number = lines.shape[0]
    changed = (lines[1:] != lines[:-1]).reshape(max(number - 1, 0), -1).any(1) if number > 1 else np.zeros(0, bool)
    starts = np.flatnonzero(np.concatenate([np.ones(min(number, 1), bool), changed]))
    kept = lines[starts]
    result = [Tensor(np.ascontiguousarray(kept if dim is None else np.moveaxis(kept, 0, dim)))]
    if return_inverse:
        inverse = np.concatenate([np.zeros(min(number, 1), np.int64), np.cumsum(changed)]).astype(np.int64)
        result.append(Tensor(inverse.reshape(input.shape) if dim is None else inverse))
    if return_counts:
        result.append(Tensor(np.diff(np.append(starts, number)).astype(np.int64)))
    return result[0] if len(result) == 1 else tuple(result)
