"""Shapes: views, splits, windows and stacking, with torch's arguments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, ops


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that tensors of these shapes are broadcast to."""
    return tuple(np.broadcast_shapes(*shapes))


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """The tensors, each broadcast to their common shape."""
    shape = np.broadcast_shapes(*[tensor.shape for tensor in tensors])
    return tuple([ops.broadcast_to(tensor, shape) for tensor in tensors])


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> Any:
    """Parts of nearly equal size, or cut before the given positions; both may come as a tensor."""
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    length = input.shape[dim]
    if isinstance(indices_or_sections, int):
        size, larger = divmod(length, indices_or_sections)
        cuts = [i * size + min(i, larger) for i in range(indices_or_sections + 1)]
    else:
        inner = [i + length if i < 0 else i for i in indices_or_sections]
        cuts = [0, *[max(0, min(i, length)) for i in inner], length]
    return tuple([input.narrow(dim, cuts[i], max(0, cuts[i + 1] - cuts[i])) for i in range(len(cuts) - 1)])


def hsplit(input: Tensor, indices_or_sections: Any) -> Any:
    """`tensor_split` along the second axis, of a vector along its only one."""
    return tensor_split(input, indices_or_sections, 0 if input.ndim == 1 else 1)


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one axis into several; one size may be -1."""
    axis = dim % input.ndim
    sizes = tuple(sizes)
    if -1 in sizes:
        known = 1
        for size in sizes:
            known = known * size if size != -1 else known
        sizes = tuple([input.shape[axis] // known if size == -1 else size for size in sizes])
    return input.reshape(input.shape[:axis] + sizes + input.shape[axis + 1 :])


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements every `step` along an axis; the window is the last axis of the result."""
    if input.ndim == 0:
        return input.reshape(1)[:size]
    axis = dimension % input.ndim
    count = (input.shape[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    picked = ops.index_select(input, axis, Tensor(places.reshape(-1)))
    shaped = picked.reshape(input.shape[:axis] + (count, size) + input.shape[axis + 1 :])
    return ops.movedim(shaped, axis + 1, -1)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turn by `k` quarters in the plane of two axes, from the first towards the second."""
    first, second = dims[0], dims[1]
    turns = k % 4
    if turns == 0:
        return input
    if turns == 2:
        return ops.flip(input, (first, second))
    if turns == 1:
        return ops.swapaxes(ops.flip(input, (second,)), first, second)
    return ops.flip(ops.swapaxes(input, first, second), (second,))


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Sum over the axes that broadcasting from `size` to the shape of `input` would have repeated."""
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    leading = input.ndim - len(shape)
    if leading:
        input = input.sum(tuple(range(leading)))
    repeated = tuple([i for i in range(len(shape)) if shape[i] == 1 and input.shape[i] != 1])
    return input.sum(repeated, keepdims=True) if repeated else input


def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Tensor:
    """Elements of `input`, taken as one row in memory, at `storage_offset + sum(index * stride)`."""
    places = _places(size, stride, storage_offset)
    return input.reshape(-1)[Tensor(places.reshape(-1))].reshape(tuple(size))


def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0
) -> Tensor:
    """`input` with `src` written to the places that `as_strided` reads."""
    places = Tensor(_places(size, stride, storage_offset).reshape(-1, 1))
    return ops.tensor_scatter_update(input.reshape(-1), places, src.reshape(-1)).reshape(input.shape)


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    places = np.full((1,) * len(size), offset, np.int64)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = length
        places = places + (np.arange(length) * step).reshape(shape)
    return places


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, one per row, in the order of their positions."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = np.array(list(choose(range(input.shape[0]), r)), dtype=np.int64).reshape(-1, r)
    if chosen.size == 0:
        return ops.zeros(chosen.shape, dtype=input.dtype)
    return ops.index_select(input, 0, Tensor(chosen.reshape(-1))).reshape(chosen.shape)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each vector, one per row; a single vector comes back as it is."""
    if len(tensors) == 1:
        return tensors[0]
    grids = ops.meshgrid(*tensors, indexing="ij")
    return ops.stack([grid.reshape(-1) for grid in grids], 1)


def adjoint(input: Tensor) -> Tensor:
    """Transposed matrix of real numbers; a scalar comes back as it is."""
    return input if input.ndim == 0 else ops.swapaxes(input, -2, -1)
