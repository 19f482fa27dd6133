"""Factorizations of matrices `[..., m, n]` and norms by singular values.

The factors come from a kernel or from the host, as constants. A first-order term of the difference between `A` and
its own value, which is zero, carries the derivative; so first derivatives are right and second ones are not there.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .linalg import _mask


def _change(A: Tensor) -> Tensor:
    """Zeros with the derivative of `A`, in double precision."""
    return (A - ops.stop_gradient(A)).astype(ms.float64)


def _t(A: Tensor) -> Tensor:
    return A.swapaxes(-2, -1)


def cholesky(A: Tensor, upper: bool = False) -> Tensor:
    """Lower `L` with `A = L L^T` (only the lower triangle of `A` counts), or upper `L^T`.

    dL = L phi(L^-1 dA L^-T) with half of the diagonal and the strictly lower triangle as phi (Murray 2016).
    """
    if A.size == 0:
        return A
    fixed = ops.stop_gradient(A).astype(ms.float64)
    part = fixed * _mask(A.shape[-2:], upper, 0, ms.float64)  # the kernel wants both triangles
    fixed = part + _t(part) - fixed * ops.eye(A.shape[-1], dtype=ms.float64)
    L = ops.stop_gradient(ops.cholesky(fixed))
    change = _change(A)
    inverse = ops.stop_gradient(ops.inverse(L))
    middle = ops.matmul(ops.matmul(inverse, (change + _t(change)) * 0.5), _t(inverse))
    half = _mask(A.shape[-2:], False, 0, ms.float64) - 0.5 * ops.eye(A.shape[-1], dtype=ms.float64)
    result = (L + ops.matmul(L, middle * half)).astype(A.dtype)
    return _t(result) if upper else result


def cholesky_ex(A: Tensor, upper: bool = False) -> tuple[Tensor, Tensor]:
    """`cholesky`, and zeros (int32) for the success of each matrix."""
    return cholesky(A, upper), ops.zeros(A.shape[:-2], dtype=ms.int32)


def qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Orthogonal `Q` and upper triangular `R`; `mode` is `reduced`, `complete` or `r` (then `Q` is empty).

    With X = Q^T dA R^-1 and W = tril(X, -1) - tril(X, -1)^T: dR = (X - W) R, dQ = dA R^-1 - Q (X - W).
    """
    m, n = A.shape[-2:]
    k = min(m, n)
    lead = A.shape[:-2]
    if A.size == 0:
        rows = m if mode == "complete" else k
        Q = ops.zeros((*lead, m, rows), dtype=A.dtype)
        if mode == "complete" and n == 0:
            Q = Q + ops.eye(m, dtype=A.dtype)
        R = ops.zeros((*lead, rows, n), dtype=A.dtype)
        return (ops.zeros((0,), dtype=A.dtype) if mode == "r" else Q), R
    Q, R = ops.qr(ops.stop_gradient(A).astype(ms.float64), "complete" if mode == "complete" else "reduced")
    Q, R = ops.stop_gradient(Q), ops.stop_gradient(R)
    if mode == "r":
        return ops.zeros((0,), dtype=A.dtype), R.astype(A.dtype)
    if mode == "reduced" or m <= n:
        Q, R = _with_change(Q, R, _change(A), k)
    return Q.astype(A.dtype), R.astype(A.dtype)


def _with_change(Q: Tensor, R: Tensor, change: Tensor, k: int) -> tuple[Tensor, Tensor]:
    n = change.shape[-1]
    first = change.narrow(-1, 0, k)
    square = R.narrow(-1, 0, k)
    scaled = ops.matmul(first, ops.stop_gradient(ops.inverse(square)))
    X = ops.matmul(_t(Q), scaled)
    low = X * _mask((k, k), False, 1, ms.float64)
    upper = X - low + _t(low)
    dQ = scaled - ops.matmul(Q, upper)
    dR = ops.matmul(upper, square)
    if n > k:
        rest = ops.matmul(_t(Q), change.narrow(-1, k, n - k))
        rest = rest + ops.matmul(_t(dQ), ops.matmul(Q, R.narrow(-1, k, n - k)))
        dR = ops.cat([dR, rest], -1)
    return Q + dQ, R + dR


def eigh(A: Tensor, UPLO: str = "L") -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order and eigenvectors of symmetric matrices, from the triangle `UPLO`.

    dw = diag(V^T dA V), dV = V (F * (V^T dA V)) with F[i, j] = 1 / (w[j] - w[i]) off the diagonal.
    """
    if A.size == 0:
        return ops.zeros(A.shape[:-1], dtype=A.dtype), A
    w_host, v_host = np.linalg.eigh(
        ops.stop_gradient(A).asnumpy().astype(np.float64), "U" if UPLO in ("U", "u") else "L"
    )
    w, V = Tensor(w_host), Tensor(v_host)
    change = _change(A)
    inner = ops.matmul(ops.matmul(_t(V), (change + _t(change)) * 0.5), V)
    gaps = w_host[..., None, :] - w_host[..., :, None]
    factor = np.where(gaps == 0, 0.0, 1.0 / np.where(gaps == 0, 1.0, gaps))
    values = w + ops.diagonal(inner, 0, -2, -1)
    return values.astype(A.dtype), (V + ops.matmul(V, inner * Tensor(factor))).astype(A.dtype)


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices in ascending order."""
    return eigh(A, UPLO)[0]


def svd(A: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """`U`, singular values in descending order, `V^T`; columns beyond the rank of the shape get no derivative.

    With P = U^T dA V: dS = diag(P), and the skew parts of F * (P S + S P^T), F * (S P + P^T S) turn U and V, where
    F[i, j] = 1 / (s[j]^2 - s[i]^2); what leaves the spaces of U and V is divided by S.
    """
    m, n = A.shape[-2:]
    k, lead = min(m, n), A.shape[:-2]
    if A.size == 0:
        eyes = [ops.eye(d, d if full_matrices else k, dtype=A.dtype) for d in (m, n)]
        U = ops.zeros((*lead, *eyes[0].shape), dtype=A.dtype) + eyes[0]
        V = ops.zeros((*lead, *eyes[1].shape), dtype=A.dtype) + eyes[1]
        return U, ops.zeros((*lead, k), dtype=A.dtype), _t(V)
    host = np.linalg.svd(ops.stop_gradient(A).asnumpy().astype(np.float64), full_matrices)
    U_all, S, V_all = Tensor(host[0]), Tensor(host[1]), _t(Tensor(host[2]))
    U, V = U_all.narrow(-1, 0, k), V_all.narrow(-1, 0, k)
    change = _change(A)
    P = ops.matmul(ops.matmul(_t(U), change), V)
    squares = host[1] ** 2
    gaps = squares[..., None, :] - squares[..., :, None]
    F = Tensor(np.where(gaps == 0, 0.0, 1.0 / np.where(gaps == 0, 1.0, gaps)))
    row, column = S.expand_dims(-2), S.expand_dims(-1)
    dU = ops.matmul(U, F * (P * row + column * _t(P)))
    dV = ops.matmul(V, F * (column * P + _t(P) * row))
    positive = Tensor(np.where(host[1] == 0, 1.0, host[1])).expand_dims(-2)
    outside_u = ops.matmul(change, V) - ops.matmul(U, P)
    outside_v = ops.matmul(_t(change), U) - ops.matmul(V, _t(P))
    dU, dV = dU + outside_u / positive, dV + outside_v / positive
    U, V = U + dU, V + dV
    if full_matrices and m > k:
        U = ops.cat([U, U_all.narrow(-1, k, m - k)], -1)
    if full_matrices and n > k:
        V = ops.cat([V, V_all.narrow(-1, k, n - k)], -1)
    values = S + ops.diagonal(P, 0, -2, -1)
    return U.astype(A.dtype), values.astype(A.dtype), _t(V).astype(A.dtype)


def svdvals(A: Tensor) -> Tensor:
    """Singular values in descending order."""
    return svd(A, False)[1]


def pinv(A: Tensor, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    """Moore-Penrose inverse; singular values up to `max(atol, rtol * largest)` count as zero.

    Derivative (Golub and Pereyra 1973): -P dA P + P P^T dA^T (1 - A P) + (1 - P A) dA^T P^T P.
    """
    m, n = A.shape[-2:]
    if A.size == 0:
        return ops.zeros((*A.shape[:-2], n, m), dtype=A.dtype)
    host = ops.stop_gradient(A).asnumpy()
    fixed = Tensor(host.astype(np.float64))
    if hermitian:
        host = np.tril(host) + np.swapaxes(np.tril(host, -1), -2, -1)
    U, S, Vt = np.linalg.svd(host.astype(np.float64), full_matrices=False)
    counted = _limit(S, host, atol, rtol)[..., None] < S
    inverse = np.where(counted, 1.0 / np.where(S == 0, 1.0, S), 0.0)
    P = Tensor(np.swapaxes(Vt, -2, -1) * inverse[..., None, :] @ np.swapaxes(U, -2, -1))
    change = _change(A)
    flow = _t(change)
    term = -ops.matmul(ops.matmul(P, change), P)
    left = ops.matmul(ops.matmul(P, _t(P)), flow)
    term = term + left - ops.matmul(ops.matmul(left, fixed), P)
    right = ops.matmul(ops.matmul(flow, _t(P)), P)
    term = term + right - ops.matmul(P, ops.matmul(fixed, right))
    return (P + term).astype(A.dtype)


def _limit(values: np.ndarray, host: np.ndarray, atol: Any, rtol: Any) -> np.ndarray:
    """Up to which singular value a matrix counts as singular."""
    largest = values.max(-1)
    absolute = np.asarray(0.0 if atol is None else _host(atol))
    if rtol is None:
        standard = max(host.shape[-2:]) * np.finfo(host.dtype).eps
        relative = np.where(absolute > 0, 0.0, standard)
    else:
        relative = np.asarray(_host(rtol))
    return np.maximum(absolute, relative * largest)


def _host(value: Any) -> Any:
    return value.asnumpy() if isinstance(value, Tensor) else value


def matrix_rank(A: Tensor, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    """Number of singular values above `max(atol, rtol * largest)`, int64."""
    if A.size == 0:
        return ops.zeros(A.shape[:-2], dtype=ms.int64)
    host = A.asnumpy()
    if hermitian:
        host = np.tril(host) + np.swapaxes(np.tril(host, -1), -2, -1)
    values = np.linalg.svd(host.astype(np.float64), compute_uv=False)
    return Tensor((values > _limit(values, host, atol, rtol)[..., None]).sum(-1).astype(np.int64))
