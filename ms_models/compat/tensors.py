"""Tensor functions that no single MindSpore call gives with torch's meaning on every back end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def full(size: Sequence[int], fill_value: Any, dtype: Any = None) -> Tensor:
    """A tensor filled with one value, whose type decides the data type: bool, int64 or float32."""
    if dtype is None:
        if isinstance(fill_value, Tensor):
            dtype = fill_value.dtype
        elif isinstance(fill_value, bool):
            dtype = ms.bool_
        else:
            dtype = ms.int64 if isinstance(fill_value, int) else ms.float32
    return ops.full(size, fill_value, dtype=dtype)


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and the same elements."""
    return input.shape == other.shape and bool((input == other).all())


def flip(input: Tensor, *dims: Any) -> Tensor:
    """Reverse the order along axes; they may come as one tuple."""
    axes = dims if isinstance(dims[0], int) else dims[0]
    return ops.flip(input, tuple(axes))


def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Shift along axes, what leaves one end enters at the other; without `dims` over the flattened tensor."""
    if dims is None:
        return _roll_axis(input.reshape(-1), shifts, 0).reshape(input.shape)
    if isinstance(shifts, int):
        return _roll_axis(input, shifts, dims)
    for i in range(len(shifts)):
        input = _roll_axis(input, shifts[i], dims[i])
    return input


def _roll_axis(input: Tensor, shift: int, axis: int) -> Tensor:
    length = input.shape[axis]
    first = shift % length if length else 0
    if first == 0:
        return input
    return ops.cat([input.narrow(axis, length - first, first), input.narrow(axis, 0, length - first)], axis)


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice at one position along `dim`, without that axis."""
    return input.narrow(dim, index % input.shape[dim], 1).squeeze(dim)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """Diagonal of a matrix, or the matrix with a given diagonal."""
    if input.ndim == 2:
        return ops.diagonal(input, diagonal)
    return ops.diag_embed(input, diagonal)


def scatter(input: Tensor, dim: int, index: Tensor, src: Any, reduce: str = "none") -> Tensor:
    """`input` with `src` written (`none`) or added (`add`) at the positions `index` along `dim`.

    `src` is a number, or a tensor at least as large as `index` along every axis.
    """
    if input.ndim == 0:
        return scatter(input.reshape(1), 0, index.reshape(-1), _row(src), reduce).reshape(())
    if not isinstance(src, Tensor):
        updates = ops.full_like(index, src, dtype=input.dtype)
    else:
        updates = src
        for axis in range(index.ndim):
            updates = updates.narrow(axis, 0, index.shape[axis])
    return ops.tensor_scatter_elements(input, index, updates.astype(input.dtype), dim, reduce)


def _row(src: Any) -> Any:
    return src.reshape(-1) if isinstance(src, Tensor) else src


def norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Tensor:
    """Vector norm over all elements or over the given axes: `(sum |x|^p)^(1/p)`; `fro` is p = 2."""
    order = 2.0 if p == "fro" or p is None else float(p)
    axes = tuple(range(input.ndim)) if dim is None else dim
    size = ops.abs(input)
    if order == float("inf"):
        return ops.amax(size, axes, keepdim)
    if order == float("-inf"):
        return ops.amin(size, axes, keepdim)
    if order == 0.0:
        return (size != 0).astype(input.dtype).sum(axes, keepdims=keepdim)
    if order == 1.0:
        return size.sum(axes, keepdims=keepdim)
    if order == 2.0:
        return ops.sqrt((input * input).sum(axes, keepdims=keepdim))
    return ops.pow(ops.pow(size, order).sum(axes, keepdims=keepdim), 1.0 / order)


def isin(elements: Tensor, test_elements: Any) -> Tensor:
    """For each element whether it occurs in `test_elements`."""
    wanted = test_elements if isinstance(test_elements, Tensor) else Tensor(test_elements)
    return (elements.expand_dims(-1) == wanted.reshape(-1)).any(-1)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """Different elements, or slices along `dim`, in ascending order; on request where they went and how often."""
    values, inverse, counts = np.unique(input.asnumpy(), return_inverse=True, return_counts=True, axis=dim)
    result = [Tensor(values)]
    if return_inverse:
        shape = input.shape if dim is None else (-1,)
        result.append(Tensor(inverse.reshape(shape).astype(np.int64)))
    if return_counts:
        result.append(Tensor(counts.astype(np.int64)))
    return result[0] if len(result) == 1 else tuple(result)


def bincount(input: Tensor, minlength: int = 0) -> Tensor:
    """How often each number from 0 occurs, int64."""
    return Tensor(np.bincount(input.asnumpy(), minlength=minlength).astype(np.int64))


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    """`input` with the slices of `source` added at the positions `index` along `dim`; positions may repeat."""
    if input.ndim == 0:
        return input + source.sum() * alpha
    moved = ops.movedim(input, dim, 0)
    rows = ops.movedim(source, dim, 0) * alpha
    added = ops.tensor_scatter_add(moved, index.reshape(-1, 1), rows.astype(input.dtype))
    return ops.movedim(added, 0, dim)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with the slices at the positions `index` along `dim` replaced by those of `source`."""
    if input.ndim == 0:
        return source.reshape(()) + input * 0.0
    moved = ops.movedim(input, dim, 0)
    copied = ops.tensor_scatter_update(moved, index.reshape(-1, 1), ops.movedim(source, dim, 0).astype(input.dtype))
    return ops.movedim(copied, 0, dim)


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """`input` with one value in the slices at `index` along `dim`; a tensor as value gets its gradient."""
    if input.ndim == 0:
        return input * 0.0 + value
    touched = ops.zeros((input.shape[dim],), dtype=ms.float32)
    touched = ops.tensor_scatter_update(
        touched, (index.reshape(-1, 1) % input.shape[dim]).astype(ms.int64), ops.ones(index.reshape(-1).shape)
    )
    shape = [1] * input.ndim
    shape[dim] = input.shape[dim]
    mask = ops.broadcast_to(touched.reshape(tuple(shape)) > 0, input.shape)
    filler = ops.zeros_like(input) + value
    return ops.select(mask, filler.astype(input.dtype), input)


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Stack tensors `[n_i, ...]` of different length into `[max n, batch, ...]`, or batch first."""
    longest = max(s.shape[0] for s in sequences)
    padded = []
    for sequence in sequences:
        missing = longest - sequence.shape[0]
        if missing:
            filler = ops.full((missing, *sequence.shape[1:]), padding_value, dtype=sequence.dtype)
            parts = [sequence, filler] if padding_side == "right" else [filler, sequence]
            sequence = ops.cat(parts, 0)
        padded.append(sequence)
    return ops.stack(padded, 0 if batch_first else 1)


def linspace(start: Any, end: Any, steps: int, dtype: Any = None) -> Tensor:
    """`steps` numbers at equal distances, both ends included; the ends may be tensors of one element."""
    first, last = float(start), float(end)
    dtype = ms.float32 if dtype is None else dtype
    if dtype in (ms.float32, ms.float64, ms.float16, ms.bfloat16):
        return Tensor(np.linspace(first, last, steps)).astype(dtype)
    return Tensor(np.linspace(first, last, steps, dtype=np.float32).astype(np.int64)).astype(dtype)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None) -> Tensor:
    """`base` to the power of `linspace(start, end, steps)`."""
    dtype = ms.float32 if dtype is None else dtype
    return Tensor(np.power(float(base), np.linspace(float(start), float(end), steps))).astype(dtype)
