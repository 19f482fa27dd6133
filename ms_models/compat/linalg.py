"""Linear systems, inverses and what follows from them, for batches of matrices `[..., m, n]`, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def inv(A: Tensor) -> Tensor:
    """Inverse of square matrices."""
    return _inverse(A).astype(A.dtype)


def inv_ex(A: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse, and zeros (int32) for the success of each matrix."""
    return inv(A), ops.zeros(A.shape[:-2], dtype=ms.int32)


def _is_vector(A: Tensor, B: Tensor) -> bool:
    # torch's rule for a batch of right sides that are vectors
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


def solve(A: Tensor, B: Tensor, left: bool = True) -> Tensor:
    """`X` of `A X = B`, or of `X A = B` with `left=False`; `B` may be a vector."""
    vector = _is_vector(A, B)
    right = B.expand_dims(-1) if vector else B
    inverse = _inverse(A)
    if left:
        result = product(inverse, right.astype(ms.float64))
    else:
        result = product(right.astype(ms.float64), inverse)
    result = result.astype(B.dtype)
    return result.squeeze(-1) if vector else result


def solve_ex(A: Tensor, B: Tensor, left: bool = True) -> tuple[Tensor, Tensor]:
    """`solve`, and zeros (int32) for the success of each matrix."""
    return solve(A, B, left), ops.zeros(A.shape[:-2], dtype=ms.int32)


def _inverse(A: Tensor) -> Tensor:
    if A.size == 0 or A.shape[-1] == 1:  # the kernel wants two rows
        return 1.0 / A.astype(ms.float64)
    return ops.inverse(A.astype(ms.float64))


def det(A: Tensor) -> Tensor:
    """Determinants."""
    if A.shape[-1] > 1 and A.size > 0:
        return ops.det(A)
    return ops.ones(A.shape[:-2], dtype=A.dtype) if A.shape[-1] != 1 else A.reshape(A.shape[:-2])


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """Signs and logarithms of the absolute values of determinants."""
    if A.shape[-1] > 1 and A.size > 0:
        return ops.slogdet(A)
    if A.shape[-1] != 1:
        return ops.ones(A.shape[:-2], dtype=A.dtype), ops.zeros(A.shape[:-2], dtype=A.dtype)
    number = A.reshape(A.shape[:-2])
    return ops.sign(number), ops.log(ops.abs(number))


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product that also takes empty matrices."""
    if a.size and b.size:
        return ops.matmul(a, b)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    zeros = ops.zeros((*lead, a.shape[-2], b.shape[-1]), dtype=a.dtype)
    return zeros


def solve_triangular(
    A: Tensor, B: Tensor, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """`solve` with the upper or lower triangle of `A`; its diagonal counts as ones with `unitriangular`."""
    return solve_matrix(triangle(A, upper, unitriangular), B, left)


def triangle(A: Tensor, upper: bool, unit: bool) -> Tensor:
    """Upper or lower triangle, on request with ones on the diagonal."""
    shift = int(unit)
    part = A * _mask(A.shape[-2:], upper, shift, A.dtype)
    return part + ops.eye(A.shape[-2], A.shape[-1], dtype=A.dtype) if unit else part


def _mask(shape: Sequence[int], upper: bool, shift: int, dtype: Any) -> Tensor:
    ones = np.ones(tuple(shape))
    return Tensor(np.triu(ones, shift) if upper else np.tril(ones, -shift)).astype(dtype)


def solve_matrix(A: Tensor, B: Tensor, left: bool = True) -> Tensor:
    """`solve` for a right side that is always a matrix."""
    inverse, right = _inverse(A), B.astype(ms.float64)
    return (product(inverse, right) if left else product(right, inverse)).astype(B.dtype)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """`A` multiplied `n` times; negative numbers take the inverse, 0 gives the unit matrix."""
    if n == 0:
        return ops.eye(A.shape[-1], dtype=A.dtype) + ops.zeros_like(A)
    if A.size == 0:
        return A
    base = inv(A) if n < 0 else A
    result, power, left = None, base, abs(n)
    while left:
        if left % 2:
            result = power if result is None else ops.matmul(result, power)
        left //= 2
        if left:
            power = ops.matmul(power, power)
    assert result is not None
    return result


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """Product of a chain; the first and the last may be vectors."""
    first, last = tensors[0], tensors[-1]
    chain = [*tensors]
    if first.ndim == 1:
        chain[0] = first.expand_dims(0)
    if last.ndim == 1:
        chain[-1] = last.expand_dims(-1)
    result = chain[0]
    for matrix in chain[1:]:
        result = product(result, matrix)
    if first.ndim == 1:
        result = result.squeeze(0)
    return result.squeeze(-1) if last.ndim == 1 else result


def vecdot(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Inner products along an axis; the shapes broadcast."""
    terms = x * y
    if terms.size > 0:
        return terms.sum(dim)
    axis = dim % terms.ndim
    return ops.zeros((*terms.shape[:axis], *terms.shape[axis + 1 :]), dtype=terms.dtype)


def vander(x: Tensor, N: int | None = None) -> Tensor:
    """Powers `x^0 ... x^(N-1)` along a new last axis."""
    x = x if x.ndim > 0 else x.reshape(1)
    count = x.shape[-1] if N is None else N
    columns = [ops.ones_like(x)]
    for _ in range(1, count):
        columns.append(columns[-1] * x)
    return ops.stack(columns[:count], -1)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """Inverse for `tensordot` over the first `ind` axes."""
    rows = int(np.prod(A.shape[:ind]))
    return inv(A.reshape(rows, -1)).reshape((*A.shape[ind:], *A.shape[:ind]))


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """`X` of `tensordot(A, X, X.ndim) = B`; the axes `dims` of `A` are moved to its end first."""
    if dims is not None:
        moved = tuple(d % A.ndim for d in dims)
        A = A.permute(tuple(i for i in range(A.ndim) if i not in moved) + moved)
    shape = A.shape[B.ndim :]
    return solve_matrix(A.reshape(B.size, -1), B.reshape(-1, 1)).reshape(shape)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """First `n` columns of the product of the reflections `I - tau v v^T` that `A` `[..., m, n]` and `tau` store."""
    m, n = A.shape[-2:]
    if A.size == 0:
        return A
    result = ops.eye(m, n, dtype=A.dtype) + ops.zeros_like(A)
    vectors = triangle(A, False, True)
    for k in reversed(range(tau.shape[-1])):
        v = vectors.narrow(-1, k, 1)
        scaled = v * tau.narrow(-1, k, 1).expand_dims(-1)
        result = result - ops.matmul(scaled, ops.matmul(v.swapaxes(-2, -1), result))
    return result
