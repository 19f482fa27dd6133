"""Strided views of byte buffers, and copies between them that stay near memory speed when axes change places."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
WORDS: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
    16: np.dtype("<c16"),
}
SLAB = 1 << 17  # elements that are changed at a time
SMALL = 1 << 12  # elements of a matrix that is not worth a loop
BLOCK = 128  # a block of 128 by 128 elements of 2 bytes stays in the nearest caches


def view(buffer: Array, itemsize: int, at: int, extent: Sequence[int], steps: Sequence[int]) -> Array:
    """Elements of a byte buffer: `at` and `steps` count elements."""
    return np.ndarray(extent, WORDS[itemsize], buffer, at * itemsize, [step * itemsize for step in steps])


def move(target: Array, source: Array, change: Callable[[Array], Array] | None = None) -> None:
    """`target[...] = change(source)`, in blocks where rows of one are columns of the other."""
    if target.ndim < 2:
        _slabs(target.reshape(-1), source.reshape(-1), change)
        return
    order = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
    target, source = target.transpose(order), source.transpose(order)
    near = min(range(source.ndim), key=lambda axis: abs(source.strides[axis]) if source.shape[axis] > 1 else 1 << 62)
    _blocks(target, source, near, change)


def _slabs(target: Array, source: Array, change: Callable[[Array], Array] | None) -> None:
    """Some indices of the outer axis at a time, because changed elements take memory of their own."""
    if change is None:
        target[...] = source
        return
    step = max(1, SLAB // max(1, math.prod(target.shape[1:])))
    for index in range(0, len(target), step):
        target[index : index + step] = change(source[index : index + step])


def _blocks(target: Array, source: Array, near: int, change: Callable[[Array], Array] | None) -> None:
    """Blocks along the axis that is nearest in the source and the one that is nearest in the target."""
    last = target.ndim - 1
    if near == last or target.shape[near] * target.shape[last] < SMALL:
        _slabs(target, source, change)
        return
    if target.ndim > 2:  # one matrix of the two axes at a time
        outer = next(axis for axis in range(target.ndim) if axis not in (near, last))
        for index in range(target.shape[outer]):
            a, b = (np.moveaxis(array, outer, 0)[index] for array in (target, source))
            _blocks(a, b, near - (outer < near), change)
        return
    # Through a small array with rows close together: rows of a large matrix often share the same places in the cache.
    for row in range(0, target.shape[0], BLOCK):
        for column in range(0, target.shape[1], BLOCK):
            block = np.ascontiguousarray(source[row : row + BLOCK, column : column + BLOCK].T)
            block = np.ascontiguousarray(block.T)
            target[row : row + BLOCK, column : column + BLOCK] = block if change is None else change(block)
