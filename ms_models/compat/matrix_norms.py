"""Norms of vectors and matrices and the condition number, as torch.linalg defines them."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .factorizations import svdvals
from .linalg import inv
from .matrices import vector_norm as _vector_norm


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """`(sum |x|^ord)^(1/ord)` over the axes `dim`, all when absent."""
    x = x if dtype is None else x.astype(dtype)
    axes = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if dim is not None and len(axes) == 0:
        axes = tuple(range(x.ndim))
    if x.ndim == 0:
        result = _vector_norm(x.reshape(1), float(ord), 0)
        return result
    if x.size == 0:
        summed = tuple([a % x.ndim for a in axes])
        if keepdim:
            return ops.zeros(tuple([1 if i in summed else x.shape[i] for i in range(x.ndim)]), dtype=x.dtype)
        return ops.zeros(tuple([x.shape[i] for i in range(x.ndim) if i not in summed]), dtype=x.dtype)
    return _vector_norm(x, float(ord), axes, keepdim)


def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Norm of the matrices over two axes: `fro`, `nuc`, 2, -2 (singular values), 1, -1 (columns), inf, -inf (rows)."""
    A = A if dtype is None else A.astype(dtype)
    rows, columns = (d % A.ndim for d in dim)
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    moved = ops.movedim(A, (rows, columns), (-2, -1))
    if ord in ("nuc", 2, -2):
        values = svdvals(moved)
        result = values.sum(-1) if ord == "nuc" else _extreme(values, -1, ord > 0)
    else:
        sums = ops.abs(moved).sum(-2 if ord in (1, -1) else -1)
        result = _extreme(sums, -1, ord > 0)
    if keepdim:
        for axis in sorted((rows, columns)):
            result = result.expand_dims(axis)
    return result


def _extreme(values: Tensor, axis: int, largest: bool) -> Tensor:
    return ops.amax(values, axis) if largest else ops.amin(values, axis)


def norm(input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Vector norm for one axis, matrix norm for two; without `ord` the 2-norm of all elements (of `dim`)."""
    if ord is None:
        return vector_norm(input, 2, dim, keepdim, dtype)
    axes = tuple(range(input.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if isinstance(ord, str) or len(axes) == 2:
        return matrix_norm(input, ord, axes, keepdim, dtype)
    return vector_norm(input, ord, axes, keepdim, dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """Norm of `A` times norm of its inverse; by singular values for None, 2 and -2."""
    if p in (None, 2, -2):
        values = svdvals(A)
        first, last = values.narrow(-1, 0, 1).squeeze(-1), values.narrow(-1, values.shape[-1] - 1, 1).squeeze(-1)
        return last / first if p == -2 else first / last
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


def info(A: Tensor) -> Tensor:
    """Zeros (int32) for the success of each matrix."""
    return ops.zeros(A.shape[:-2], dtype=ms.int32)
