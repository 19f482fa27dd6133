"""LU factorization with partial pivoting; pivots are found on the host, factors have first derivatives."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .linalg import _mask, product, triangle


def _eliminated(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed factors and pivots (counted from 1, as LAPACK does) of one matrix."""
    packed, count = A.copy(), min(A.shape)
    pivots = np.zeros(count, np.int32)
    for k in range(count):
        row = k + int(np.abs(packed[k:, k]).argmax())
        pivots[k] = row + 1
        packed[[k, row]] = packed[[row, k]]
        if packed[k, k] != 0:
            packed[k + 1 :, k] /= packed[k, k]
            packed[k + 1 :, k + 1 :] -= np.outer(packed[k + 1 :, k], packed[k, k + 1 :])
    return packed, pivots


def _permutations(pivots: np.ndarray, rows: int) -> np.ndarray:
    """Matrices `P` with `A = P L U` from pivots `[..., k]`."""
    flat = pivots.reshape(-1, pivots.shape[-1])
    result = np.zeros((len(flat), rows, rows))
    for b in range(len(flat)):
        order = np.arange(rows)
        for k, pivot in enumerate(flat[b]):
            order[[k, pivot - 1]] = order[[pivot - 1, k]]
        result[b, order, np.arange(rows)] = 1.0
    return result.reshape((*pivots.shape[:-1], rows, rows))


def _factored(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`P`, `L`, `U` in double precision, and the pivots.

    On the leading square: dL = L tril(X, -1), dU = triu(X) U with X = L^-1 P^T dA U^-1; the rest follows.
    """
    m, n = A.shape[-2:]
    k, lead = min(m, n), A.shape[:-2]
    host = ops.stop_gradient(A).asnumpy().astype(np.float64).reshape((-1, m, n) if A.size else (0, m, n))
    found = [_eliminated(matrix) for matrix in host]
    packed = np.array([f[0] for f in found]).reshape((*lead, m, n))
    pivots = np.array([f[1] for f in found], np.int32).reshape((*lead, k))
    low = np.tril(packed[..., :k], -1) + np.eye(m, k)
    up = np.triu(packed[..., :k, :])
    P = _permutations(pivots, m)
    change = (A - ops.stop_gradient(A)).astype(ms.float64)
    L, U, change = Tensor(low), Tensor(up), product(Tensor(np.swapaxes(P, -2, -1).copy()), change)
    if A.size:
        inverse_l = Tensor(np.linalg.inv(low[..., :k, :]))
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse_u = Tensor(_inverse(up[..., :, :k]))
        square = change.narrow(-2, 0, k).narrow(-1, 0, k)
        X = ops.matmul(ops.matmul(inverse_l, square), inverse_u)
        low_X = X * _mask((k, k), False, 1, ms.float64)
        dL = ops.matmul(L.narrow(-2, 0, k), low_X)
        dU = ops.matmul(X - low_X, U.narrow(-1, 0, k))
        if m > k:
            rest = change.narrow(-2, k, m - k) - ops.matmul(L.narrow(-2, k, m - k), dU)
            dL = ops.cat([dL, ops.matmul(rest, inverse_u)], -2)
        if n > k:
            rest = change.narrow(-1, k, n - k) - ops.matmul(dL, U.narrow(-1, k, n - k))
            dU = ops.cat([dU, ops.matmul(inverse_l, rest)], -1)
        L, U = L + dL, U + dU
    return Tensor(P), L, U, Tensor(pivots)


def _inverse(matrices: np.ndarray) -> np.ndarray:
    """Inverse of triangular matrices; without derivative (zeros) where one is singular."""
    singular = (np.diagonal(matrices, 0, -2, -1) == 0).any(-1)[..., None, None]
    inverse = np.linalg.inv(np.where(singular, np.eye(matrices.shape[-1]), matrices))
    return np.where(singular, 0.0, inverse)


def lu(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`P`, `L`, `U` with `A = P L U`."""
    P, L, U, _ = _factored(A)
    return P.astype(A.dtype), L.astype(A.dtype), U.astype(A.dtype)


def lu_factor(A: Tensor) -> tuple[Tensor, Tensor]:
    """`L` without its unit diagonal and `U` in one matrix, and the pivots (int32, from 1)."""
    m, n = A.shape[-2:]
    k = min(m, n)
    _, L, U, pivots = _factored(A)
    if A.size == 0:
        return A, pivots
    packed = L.narrow(-2, 0, k) - ops.eye(k, dtype=ms.float64) + U.narrow(-1, 0, k)
    if m > k:
        packed = ops.cat([packed, L.narrow(-2, k, m - k)], -2)
    if n > k:
        packed = ops.cat([packed, U.narrow(-1, k, n - k)], -1)
    return packed.astype(A.dtype), pivots


def lu_factor_ex(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`lu_factor`, and zeros (int32) for the success of each matrix."""
    return (*lu_factor(A), ops.zeros(A.shape[:-2], dtype=ms.int32))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, left: bool = True, adjoint: bool = False) -> Tensor:
    """`X` of `A X = B` (`X A = B` without `left`; `A^T` for `A` with `adjoint`) from `lu_factor(A)`."""
    wide = LU.astype(ms.float64)
    n = LU.shape[-1]
    if LU.size == 0 or B.size == 0:
        lead = np.broadcast_shapes(LU.shape[:-2], B.shape[:-2])
        return ops.zeros((*lead, *B.shape[-2:]), dtype=B.dtype)
    P = Tensor(_permutations(pivots.asnumpy(), n))
    L, U = triangle(wide, False, True), triangle(wide, True, False)
    A = ops.matmul(P, ops.matmul(L, U))
    A = A.swapaxes(-2, -1) if adjoint else A
    inverse = 1.0 / A if n == 1 else ops.inverse(A)
    right = B.astype(ms.float64)
    return (product(inverse, right) if left else product(right, inverse)).astype(B.dtype)
