"""Orthogonal polynomials of a tensor's elements; the degree is a number or a tensor of degrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor


def _recurrence(input: Any, n: Any, first: Callable[[Any], Any], step: Callable[[int, Any, Any, Any], Any]) -> Tensor:
    """Values of degree `n` from degree 0, which is 1, and 1 (`first`), by `step(k, x, p[k], p[k - 1])` = p[k + 1].

    A negative degree gives 0. The recurrence runs in double precision; the result has no gradient, as in torch.
    """
    tensors = [v for v in (input, n) if isinstance(v, Tensor)]
    dtype = tensors[0].dtype if tensors[0].dtype in (ms.float32, ms.float64) else ms.float32
    x, degrees = np.broadcast_arrays(_host(input).astype(np.float64), _host(n).astype(np.int64))
    result = np.where(degrees == 0, 1.0, 0.0)
    before, now = np.ones_like(x), first(x)
    for k in range(1, int(degrees.max(initial=0)) + 1):
        result = np.where(degrees == k, now, result)
        before, now = now, step(k, x, now, before)
    return Tensor(result, dtype)


def _host(value: Any) -> np.ndarray:
    return value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)


def _chebyshev(k: int, x: Any, now: Any, before: Any) -> Any:
    return 2 * x * now - before


def chebyshev_polynomial_t(input: Any, n: Any) -> Tensor:
    """First kind: `cos(n arccos x)`."""
    return _recurrence(input, n, lambda x: x, _chebyshev)


def chebyshev_polynomial_u(input: Any, n: Any) -> Tensor:
    """Second kind."""
    return _recurrence(input, n, lambda x: 2 * x, _chebyshev)


def chebyshev_polynomial_v(input: Any, n: Any) -> Tensor:
    """Third kind."""
    return _recurrence(input, n, lambda x: 2 * x - 1, _chebyshev)


def chebyshev_polynomial_w(input: Any, n: Any) -> Tensor:
    """Fourth kind."""
    return _recurrence(input, n, lambda x: 2 * x + 1, _chebyshev)


def shifted_chebyshev_polynomial_t(input: Any, n: Any) -> Tensor:
    """First kind of `2 x - 1`."""
    return _shifted(input, n, lambda x: x)


def shifted_chebyshev_polynomial_u(input: Any, n: Any) -> Tensor:
    """Second kind of `2 x - 1`."""
    return _shifted(input, n, lambda x: 2 * x)


def shifted_chebyshev_polynomial_v(input: Any, n: Any) -> Tensor:
    """Third kind of `2 x - 1`."""
    return _shifted(input, n, lambda x: 2 * x - 1)


def shifted_chebyshev_polynomial_w(input: Any, n: Any) -> Tensor:
    """Fourth kind of `2 x - 1`."""
    return _shifted(input, n, lambda x: 2 * x + 1)


def _shifted(input: Any, n: Any, first: Callable[[Any], Any]) -> Tensor:
    return _recurrence(
        input, n, lambda x: first(2 * x - 1), lambda k, x, now, before: _chebyshev(k, 2 * x - 1, now, before)
    )


def hermite_polynomial_h(input: Any, n: Any) -> Tensor:
    """Physicists' Hermite polynomials."""
    return _recurrence(input, n, lambda x: 2 * x, lambda k, x, now, before: 2 * x * now - 2 * k * before)


def hermite_polynomial_he(input: Any, n: Any) -> Tensor:
    """Probabilists' Hermite polynomials."""
    return _recurrence(input, n, lambda x: x, lambda k, x, now, before: x * now - k * before)


def laguerre_polynomial_l(input: Any, n: Any) -> Tensor:
    """Laguerre polynomials."""
    return _recurrence(
        input, n, lambda x: 1 - x, lambda k, x, now, before: ((2 * k + 1 - x) * now - k * before) / (k + 1)
    )


def legendre_polynomial_p(input: Any, n: Any) -> Tensor:
    """Legendre polynomials."""
    return _recurrence(input, n, lambda x: x, lambda k, x, now, before: ((2 * k + 1) * x * now - k * before) / (k + 1))
