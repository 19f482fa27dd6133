"""Reading and writing at positions: take, put, scatter with a reduction, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements at positions of the flattened input, in the shape of `index`."""
    flat = input.reshape(-1)
    if 0 in index.shape:
        return ops.zeros(index.shape, dtype=input.dtype)
    places = index.reshape(-1).astype(ms.int64)
    places = ops.where(places < 0, places + flat.shape[0], places)
    return ops.gather_elements(flat, 0, places).reshape(index.shape)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Elements at positions along `dim`, the other axes broadcast; without `dim` over the flattened input."""
    if dim is None:
        return ops.gather_elements(input.reshape(-1), 0, indices.reshape(-1))
    axis = dim % input.ndim
    wide, places = [], []
    for i in range(input.ndim):
        both = max(input.shape[i], indices.shape[i])
        wide.append(input.shape[i] if i == axis else both)
        places.append(indices.shape[i] if i == axis else both)
    return ops.gather_elements(ops.broadcast_to(input, tuple(wide)), axis, ops.broadcast_to(indices, tuple(places)))


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `source` written, or added, at positions of the flattened input."""
    flat, places = input.reshape(-1), index.reshape(-1, 1)
    if places.shape[0] == 0:
        return input
    places = ops.where(places < 0, places + flat.shape[0], places)
    write = ops.tensor_scatter_add if accumulate else ops.tensor_scatter_update
    return write(flat, places, source.reshape(-1)).reshape(input.shape)


def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with `values` written, or added, where `input[indices]` reads; a mask as index works outside `ms.jit`."""
    places: list[Tensor] = []
    for index in indices:
        if index.dtype == ms.bool_:
            places = places + [Tensor(a) for a in np.nonzero(index.asnumpy())]
        else:
            places.append(index)
    shape = np.broadcast_shapes(*[place.shape for place in places])
    wide = [ops.broadcast_to(p, shape).astype(ms.int64) for p in places]
    wide = [ops.where(p < 0, p + input.shape[i], p) for i, p in enumerate(wide)]
    updates = ops.broadcast_to(values, shape + input.shape[len(wide) :]).astype(input.dtype)
    write = ops.tensor_scatter_add if accumulate else ops.tensor_scatter_update
    return write(input, ops.stack(wide, -1), updates)


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the elements of `source`, in their order, at the places where `mask` holds."""
    shape = np.broadcast_shapes(input.shape, mask.shape)
    held = ops.broadcast_to(mask, shape).reshape(-1)
    order = ops.cumsum(held.astype(ms.int32), 0).astype(ms.int64) - 1
    picked = source.reshape(-1)[ops.maximum(order, 0)]
    return ops.select(held, picked, ops.broadcast_to(input, shape).reshape(-1)).reshape(shape)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """`input` combined with `src` at the positions `index` along `dim`: sum, mean, prod, amax or amin.

    Equal extremes share the gradient evenly, as in torch.

    Raises:
        ValueError: an unknown reduction.
    """
    if input.ndim == 0:
        return scatter_reduce(input.reshape(1), 0, index.reshape(-1), src.reshape(-1), reduce, include_self).reshape(())
    axis = dim % input.ndim
    for i in range(index.ndim):
        src = src.narrow(i, 0, index.shape[i])
    if 0 in index.shape:
        return input
    number = _add(ops.zeros_like(input), axis, index, ops.ones_like(src))
    if reduce == "sum" or reduce == "mean":
        start = input if include_self else ops.select(number > 0, ops.zeros_like(input), input)
        total = _add(start, axis, index, src)
        if reduce == "sum":
            return total
        return total / (number + 1.0 if include_self else ops.maximum(number, ops.ones_like(number)))
    if reduce == "prod":
        return _scatter_product(input, axis, index, src, number, include_self)
    if reduce not in ("amax", "amin"):
        raise ValueError(f"scatter_reduce: reduce is {reduce!r}, not sum, mean, prod, amax or amin")
    return _scatter_extreme(input, axis, index, src, number, include_self, -1.0 if reduce == "amin" else 1.0)


def _add(start: Tensor, axis: int, index: Tensor, src: Tensor) -> Tensor:
    return ops.tensor_scatter_elements(start, index, src.astype(start.dtype), axis, "add")


def _coordinates(axis: int, index: Tensor) -> Tensor:
    grids = [ops.broadcast_to(_line(index, i), index.shape) for i in range(index.ndim)]
    grids[axis] = index.astype(ms.int64)
    return ops.stack(grids, -1)


def _line(index: Tensor, axis: int) -> Tensor:
    shape = [1] * index.ndim
    shape[axis] = index.shape[axis]
    return ops.arange(index.shape[axis]).reshape(tuple(shape))


def _scatter_extreme(
    input: Tensor, axis: int, index: Tensor, src: Tensor, number: Tensor, include_self: bool, sign: float
) -> Tensor:
    own = ops.stop_gradient(input) * sign
    start = own if include_self else ops.select(number > 0, ops.full_like(own, float("-inf")), own)
    places = _coordinates(axis, index)
    best = ops.tensor_scatter_max(start, places, ops.stop_gradient(src) * sign) * sign
    own_wins = (input == best).astype(input.dtype)
    if not include_self:
        own_wins = ops.select(number > 0, ops.zeros_like(own_wins), own_wins)
    wins = (src == ops.gather_elements(best, axis, index)).astype(input.dtype)
    shared = _add(own_wins, axis, index, wins)
    return _add(input * own_wins, axis, index, src * wins) / shared


def _scatter_product(
    input: Tensor, axis: int, index: Tensor, src: Tensor, number: Tensor, include_self: bool
) -> Tensor:
    """Products with their gradient: `p * sum(dx / x)`, where one factor is 0 the product of the others."""
    start = input if include_self else ops.select(number > 0, ops.ones_like(input), input)
    first, others = _no_zeros(start), _no_zeros(src)
    product = ops.tensor_scatter_mul(ops.stop_gradient(first), _coordinates(axis, index), ops.stop_gradient(others))
    shares = _add(first / ops.stop_gradient(first), axis, index, others / ops.stop_gradient(others))
    whole = product * (shares - ops.stop_gradient(shares) + 1.0)
    zeros = _add((start == 0).astype(input.dtype), axis, index, (src == 0).astype(src.dtype))
    zero = _add(start - first * (start != 0), axis, index, src - others * (src != 0))
    return ops.select(zeros == 0, whole, ops.select(zeros == 1, product * zero, ops.zeros_like(whole)))


def _no_zeros(factor: Tensor) -> Tensor:
    return ops.select(factor == 0, ops.ones_like(factor), factor)


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` of whole slices: slice `i` of `source` goes to slice `index[i]` of `input`."""
    if input.ndim == 0:
        return scatter_reduce(input, 0, index, source, reduce, include_self)
    axis = dim % input.ndim
    shape = [1] * input.ndim
    shape[axis] = index.shape[0]
    wide = ops.broadcast_to(index.reshape(tuple(shape)), source.shape)
    return scatter_reduce(input, axis, wide, source, reduce, include_self)


def nonzero(input: Tensor, as_tuple: bool = False) -> Any:
    """Positions of the elements that are not zero: one per row, or one vector per axis."""
    array = input.asnumpy()
    if not as_tuple:
        return Tensor(np.argwhere(array).astype(np.int64))
    return tuple([Tensor(part.astype(np.int64)) for part in np.nonzero(np.atleast_1d(array))])


def searchsorted(
    sorted_sequence: Tensor, input: Any, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where to insert values so that ascending order is kept: before equal elements, or behind them (`right`)."""
    values = input if isinstance(input, Tensor) else ms.tensor(input, sorted_sequence.dtype)
    ordered = sorted_sequence if sorter is None else ops.gather_elements(sorted_sequence, -1, sorter)
    if ordered.ndim > 1:
        ordered = ordered.expand_dims(-2)
    wanted = values.expand_dims(-1)
    passed = ordered <= wanted if right or side == "right" else ordered < wanted
    return passed.astype(ms.int32).sum(-1).astype(ms.int32 if out_int32 else ms.int64)


def bucketize(input: Any, boundaries: Tensor, out_int32: bool = False, right: bool = False) -> Tensor:
    """Number of the interval between `boundaries` that each value falls into."""
    return searchsorted(boundaries, input, out_int32, right)
