"""Eigenvalues and eigenvectors of general real matrices; computed on the host, with first derivatives."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def eig(A: Tensor) -> tuple[Tensor, Tensor]:
    """Complex eigenvalues and eigenvectors of unit length, in the order of LAPACK.

    With M = V^-1 dA V: dw = diag(M), dV = V (F * M) less its part along V, F[i, j] = 1 / (w[j] - w[i]) off the
    diagonal. Written in real and imaginary parts: MindSpore has no gradient of complex products.
    """
    if A.size == 0:
        kind = np.complex64 if A.dtype == ms.float32 else np.complex128
        return Tensor(np.zeros(A.shape[:-1], kind)), Tensor(np.zeros(A.shape, kind))
    w, V = np.linalg.eig(ops.stop_gradient(A).asnumpy().astype(np.float64))
    V = V.astype(np.complex128)
    gaps = w[..., None, :] - w[..., :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        F = np.where(gaps == 0, 0.0, 1.0 / gaps)
    change = (A - ops.stop_gradient(A)).astype(ms.float64)
    left, right, factor = _parts(np.linalg.inv(V)), _parts(V), _parts(F)
    M = _product(left, _product((change, ops.zeros_like(change)), right))
    inner = (factor[0] * M[0] - factor[1] * M[1], factor[0] * M[1] + factor[1] * M[0])
    turn = _product(right, inner)
    along = (right[0] * turn[0] + right[1] * turn[1]).sum(-2, keepdims=True)
    values = [Tensor(p) + ops.diagonal(m, 0, -2, -1) for p, m in ((w.real.copy(), M[0]), (_imaginary(w), M[1]))]
    vectors = [v + t - v * along for v, t in zip(right, turn, strict=True)]
    return _complex(values, A), _complex(vectors, A)


def eigvals(A: Tensor) -> Tensor:
    """Complex eigenvalues, in the order of LAPACK."""
    return eig(A)[0]


def _imaginary(values: np.ndarray) -> np.ndarray:
    return np.imag(values).copy()


def _parts(values: np.ndarray) -> tuple[Tensor, Tensor]:
    return Tensor(values.real.copy()), Tensor(_imaginary(values))


def _product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    real = ops.matmul(a[0], b[0]) - ops.matmul(a[1], b[1])
    return real, ops.matmul(a[0], b[1]) + ops.matmul(a[1], b[0])


def _complex(parts: list[Tensor], like: Tensor) -> Tensor:
    return ops.Complex()(parts[0].astype(like.dtype), parts[1].astype(like.dtype))
