"""Special functions of statistics and analysis that MindSpore lacks or computes with another domain."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops


def entr(input: Tensor) -> Tensor:
    """`-x log x`; 0 at 0, minus infinity below."""
    positive = input > 0
    safe = ops.where(positive, input, ops.ones_like(input))
    outside = ops.where(input == 0, ops.zeros_like(input), ops.full_like(input, -float("inf")))
    values = ops.where(positive, -safe * ops.log(safe), outside)
    return ops.where(ops.isnan(input), input, values)


def xlogy(input: Any, other: Any) -> Tensor:
    """`x log y`, 0 where x is 0 (unless y is NaN)."""
    return _times_log(input, other, 0.0)


def xlog1py(input: Any, other: Any) -> Tensor:
    """`x log(1 + y)`, 0 where x is 0 (unless y is NaN)."""
    return _times_log(input, other, 1.0)


def _times_log(input: Any, other: Any, shift: float) -> Tensor:
    x = input if isinstance(input, Tensor) else ops.full_like(other, input)
    y = other if isinstance(other, Tensor) else ops.full_like(input, other)
    zero = ops.logical_and(x == 0, ops.logical_not(ops.isnan(y)))
    safe = ops.where(zero, ops.ones_like(y), y)
    logarithm = ops.log1p(safe) if shift else ops.log(safe)
    return ops.where(zero, ops.zeros_like(logarithm), x * logarithm)


def ndtr(input: Tensor) -> Tensor:
    """Distribution function of the normal distribution."""
    return 0.5 * ops.erfc(-input * math.sqrt(0.5))


def log_ndtr(input: Tensor) -> Tensor:
    """Logarithm of `ndtr`, exact in the lower tail."""
    t = input * math.sqrt(0.5)
    low = input < -1.0
    tail = ops.log(erfcx(-ops.minimum(t, ops.full_like(t, -0.5))) * 0.5) - t * t
    upper = ops.log1p(-0.5 * ops.erfc(ops.where(low, ops.zeros_like(t), t)))
    return ops.where(low, tail, upper)


def ndtri(input: Tensor) -> Tensor:
    """Quantile of the normal distribution: the inverse of `ndtr`."""
    x = input.astype(ms.float64)
    inner = ops.logical_and(x > 0, x < 1)
    safe = ops.where(inner, x, ops.full_like(x, 0.5))
    value = math.sqrt(2.0) * ops.erfinv(2 * safe - 1)
    # two Newton steps on the distribution function remove the error of erfinv near 0 and 1
    for _ in range(2):
        density = ops.exp(-0.5 * value * value) / math.sqrt(2 * math.pi)
        value = value - (0.5 * ops.erfc(-value * math.sqrt(0.5)) - safe) / density
    infinite = ops.full_like(x, float("inf"))
    edge = ops.where(x == 0, -infinite, ops.where(x == 1, infinite, infinite - infinite))
    return ops.where(inner, value, edge).astype(input.dtype)


# Taylor-free evaluation: for x >= 0, erfcx(x) = t exp(polynomial(t)), t = 1 / (1 + x / 2): Numerical Recipes, 6.2.2.
_ERFCX = (
    (-1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3)
    + (-9.46595344482036e-4, 3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5)
    + (-1.624290004647e-6, 1.303655835580e-6, 1.5626441722e-8, -8.5238095915e-8)
    + (6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10)
    + (9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13)
    + (3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15)
)


def erfcx(input: Tensor) -> Tensor:
    """`exp(x^2) erfc(x)`, computed without under- or overflow for positive x (Chebyshev series of erfc)."""
    x = input.astype(ms.float64)
    size = ops.abs(x)
    t = 2.0 / (2.0 + size)
    y = 4.0 * t - 2.0
    d, dd = ops.zeros_like(t), ops.zeros_like(t)
    for i in range(len(_ERFCX) - 1, 0, -1):
        d, dd = y * d - dd + _ERFCX[i], d
    positive = t * ops.exp(0.5 * (_ERFCX[0] + y * d) - dd)
    return ops.where(x < 0, 2 * ops.exp(x * x) - positive, positive).astype(input.dtype)


def zeta(input: Any, other: Any) -> Tensor:
    """Hurwitz zeta function."""
    x = input if isinstance(input, Tensor) else ops.full_like(other, input)
    q = other if isinstance(other, Tensor) else ops.full_like(input, other)
    if (x + q).size == 0:
        return x + q
    return ops.zeta(x + ops.zeros_like(q), q + ops.zeros_like(x))


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """`log(x / (1 - x))`, with `eps` for x cut to `[eps, 1 - eps]`."""
    x = input if eps is None else ops.clamp(input, eps, 1 - eps)
    return ops.log(x / (1 - x))


def multigammaln(input: Tensor, p: int) -> Tensor:
    """Logarithm of the gamma function of p dimensions."""
    total = input * 0.0 + p * (p - 1) / 4 * math.log(math.pi)
    for i in range(p):
        total = total + ops.lgamma(input - i / 2)
    return total


def spherical_bessel_j0(input: Tensor) -> Tensor:
    """`sin(x) / x`, 1 at 0 and 0 at infinity."""
    infinite = ops.isinf(input)
    special = ops.logical_or(infinite, input == 0)
    safe = ops.where(special, ops.ones_like(input), input)
    edge = ops.where(infinite, ops.zeros_like(input), ops.ones_like(input))
    return ops.where(special, edge, ops.sin(safe) / safe)


def i1(input: Tensor) -> Tensor:
    """Modified Bessel function of the first kind, order 1, with its derivative 1/2 at 0."""
    return ops.bessel_i1e(input) * ops.exp(ops.abs(input))


def _positive(input: Tensor, value: Tensor) -> Tensor:
    return ops.where(input < 0, ops.full_like(input, float("nan")), value)


def bessel_y0(input: Tensor) -> Tensor:
    """Second kind, order 0; NaN of negative numbers."""
    return _positive(input, ops.bessel_y0(input))


def bessel_y1(input: Tensor) -> Tensor:
    """Second kind, order 1; NaN of negative numbers."""
    return _positive(input, ops.bessel_y1(input))


def bessel_k0(input: Tensor) -> Tensor:
    """Modified, second kind, order 0; NaN of negative numbers."""
    return _positive(input, ops.bessel_k0(input))


def bessel_k1(input: Tensor) -> Tensor:
    """Modified, second kind, order 1; NaN of negative numbers."""
    return _positive(input, ops.bessel_k1(input))


def bessel_k0e(input: Tensor) -> Tensor:
    """`exp(x)` times `bessel_k0`; NaN of negative numbers."""
    return _positive(input, ops.bessel_k0e(input))


def bessel_k1e(input: Tensor) -> Tensor:
    """`exp(x)` times `bessel_k1`; NaN of negative numbers."""
    return _positive(input, ops.bessel_k1e(input))
