"""torch's older names for factorizations and solvers, with their own argument order and results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from . import factorizations, linalg, lu


def _product(L: Tensor, upper: bool) -> Tensor:
    turned = L.swapaxes(-2, -1)
    return ops.matmul(turned, L) if upper else ops.matmul(L, turned)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """Inverse of the matrix with this Cholesky factor, whose other triangle must be 0."""
    if 0 in L.shape:
        return L
    return linalg.inv(_product(L, upper))


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """Solution of `A X = B` for the matrix with this Cholesky factor, whose other triangle must be 0."""
    return linalg.solve(_product(L, upper), B)


def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    """Solution of `A x = b` with a triangular matrix, and the triangle that was used."""
    triangle = ops.triu(A) if upper else ops.tril(A)
    if transpose:
        solution = linalg.solve_triangular(triangle.swapaxes(-2, -1), b, upper=not upper, unitriangular=unitriangular)
    else:
        solution = linalg.solve_triangular(triangle, b, upper=upper, unitriangular=unitriangular)
    return solution, A


def qr(input: Tensor, some: bool = True) -> Any:
    """Orthogonal and upper triangular factor, reduced or complete."""
    return factorizations.qr(input, "reduced" if some else "complete")


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition `U, S, V`: V itself, not its transpose; zeros for U and V when not wanted."""
    if not compute_uv:
        rows, columns = input.shape[-2], input.shape[-1]
        values = factorizations.svdvals(input)
        left = ops.zeros((*input.shape[:-2], rows, rows), dtype=input.dtype)
        return left, values, ops.zeros((*input.shape[:-2], columns, columns), dtype=input.dtype)
    left, values, right = factorizations.svd(input, not some)
    return left, values, right.swapaxes(-2, -1)


def logdet(input: Tensor) -> Tensor:
    """Logarithm of the determinant; NaN where that is negative."""
    sign, size = linalg.slogdet(input)
    return ops.masked_fill(size, sign < 0, float("nan"))


def lu_factor(A: Tensor, get_infos: bool = False) -> Any:
    """Compact LU factors and pivots, on request whether each matrix is regular (0)."""
    return lu.lu_factor_ex(A) if get_infos else lu.lu_factor(A)


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """Permutation, unit lower and upper triangular factor out of their compact form; empty where not wanted."""
    rows, columns = LU_data.shape[-2], LU_data.shape[-1]
    inner = min(rows, columns)
    empty = ops.zeros((0,), dtype=LU_data.dtype)
    lower, upper = empty, empty
    if unpack_data:
        unit = ops.eye(rows, inner, dtype=LU_data.dtype)
        lower, upper = ops.tril(LU_data[..., :inner], -1) + unit, ops.triu(LU_data[..., :inner, :])
    if not unpack_pivots:
        return empty, lower, upper
    pivots = LU_pivots.asnumpy().reshape(-1, LU_pivots.shape[-1]) - 1
    order = np.tile(np.arange(rows), (len(pivots), 1))
    for place, line in zip(order, pivots, strict=True):
        for i, j in enumerate(line):
            place[[i, j]] = place[[j, i]]
    turned = np.eye(rows, dtype=np.float32)[order].swapaxes(-2, -1).reshape(*LU_data.shape[:-2], rows, rows)
    return Tensor(turned).astype(LU_data.dtype), lower, upper


def matrix_exp(input: Tensor) -> Tensor:
    """Exponential of square matrices by scaling, a Taylor series and squaring."""
    if 0 in input.shape:
        return input
    size = float(np.abs(ops.stop_gradient(input).asnumpy()).sum(-2).max())
    halvings = max(0, math.ceil(math.log2(size / 3.0))) if size > 0 else 0
    scaled = input / 2.0**halvings
    term = ops.eye(input.shape[-1], dtype=input.dtype) + ops.zeros_like(input)
    total = term
    for i in range(1, 19):  # the rest is below 3^19 / 19! < 1e-8 of exp(3)
        term = ops.matmul(term, scaled) / float(i)
        total = total + term
    for _ in range(halvings):
        total = ops.matmul(total, total)
    return total
