"""Least squares in torch's four parts: solution, residuals, rank, singular values."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .factorizations import matrix_rank, pinv
from .linalg import product


def lstsq(A: Tensor, B: Tensor, rcond: Any = None, driver: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`X` of the least `|A X - B|`; residuals are there for tall matrices of full rank.

    `driver` decides what is returned besides: residuals with all but `gelsy`, the standard; no rank with `gels`;
    singular values with `gelsd` and `gelss`.
    """
    m, n = A.shape[-2:]
    vector = A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape
    right = B.expand_dims(-1) if vector else B
    limit = np.finfo(np.float32).eps * max(m, n) if rcond is None else rcond
    solution = product(pinv(A, rtol=limit), right)
    rank = matrix_rank(A, rtol=limit)
    none = ops.zeros((0,), dtype=A.dtype)
    residuals = none
    if m > n and driver in ("gels", "gelsd", "gelss") and bool((rank.asnumpy() == n).all()):
        error = product(A, solution) - right
        residuals = (error * error).sum(-2)
    values = none
    if driver in ("gelsd", "gelss"):
        values = Tensor(np.linalg.svd(A.asnumpy().astype(np.float64), compute_uv=False).astype(A.asnumpy().dtype))
    if driver == "gels":
        rank = ops.zeros((0,), dtype=ms.int64)
    return (solution.squeeze(-1) if vector else solution), residuals, rank, values
