"""Element-wise functions that MindSpore lacks on the CPU or computes with another meaning."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """Element-wise minimum that takes the number where the other one is NaN."""
    return -ops.fmax(-input, -other)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """`log(exp(input) + exp(other))` without overflow; two equal infinities give that infinity."""
    high = ops.where(input > other, input, other)  # ops.maximum takes no empty tensors
    # Two equal numbers share the gradient: `high` gives all of it to the second, the gap, which is no `abs`, half back.
    gap = ops.where(input > other, input - other, other - input)
    summed = high + ops.log1p(ops.exp(-gap))
    return ops.select(ops.isnan(gap), input + other, summed) if input.shape == other.shape else summed


def angle(input: Tensor) -> Tensor:
    """Angle of real numbers: pi where negative, 0 elsewhere, NaN of NaN; its derivative is 0."""
    turned = (input < 0).astype(input.dtype) * math.pi
    return ops.stop_gradient(ops.select(ops.isnan(input), input, turned))


def conj(input: Tensor) -> Tensor:
    """Complex conjugate; real tensors come back as they are."""
    return ops.conj(input) if input.dtype in (ms.complex64, ms.complex128) else input


def real(input: Tensor) -> Tensor:
    """Real part; real tensors come back as they are."""
    return ops.real(input) if input.dtype in (ms.complex64, ms.complex128) else input


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers from their parts, which are broadcast against each other."""
    return ops.Complex()(real + ops.zeros_like(imag), imag + ops.zeros_like(real))


def polygamma(n: int, input: Tensor) -> Tensor:
    """Derivative number `n` of digamma."""
    return ops.digamma(input) if n == 0 else ops.polygamma(ms.tensor(n, ms.int32), input)


def round(input: Tensor, decimals: int = 0) -> Tensor:
    """Nearest number with `decimals` digits after the point, or zeros before it when negative; halves go to even."""
    if decimals == 0:
        return ops.round(input)
    scale = 10.0 ** abs(decimals)
    return ops.round(input * scale) / scale if decimals > 0 else ops.round(input / scale) * scale


def frexp(input: Tensor) -> tuple[Tensor, Tensor]:
    """`input = mantissa * 2**exponent` with a mantissa in [0.5, 1); exponents are int32."""
    exponent = Tensor(np.frexp(ops.stop_gradient(input).asnumpy())[1].astype(np.int32))
    return input * ops.pow(ms.tensor(2.0, input.dtype), -exponent.astype(input.dtype)), exponent


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next representable number after `input` in the direction of `other`."""
    following = Tensor(np.nextafter(ops.stop_gradient(input).asnumpy(), other.asnumpy()))
    return input + (following - ops.stop_gradient(input))


def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor like `input` with one value everywhere; a tensor as value gets its gradient."""
    if isinstance(value, Tensor):
        return ops.zeros_like(input) + value.astype(input.dtype)
    return ops.full_like(input, value)


def nan_to_zero(input: Tensor) -> Tensor:
    """`input` with zeros for NaN, which get no gradient."""
    return ops.select(ops.isnan(input), ops.zeros_like(input), input)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Limit to a range whose bounds are numbers or tensors, broadcast against `input`."""
    result = input if min is None else ops.where(input < min, min, input)
    return result if max is None else ops.where(result > max, max, result)


def rsub(input: Tensor, other: Any, alpha: float = 1) -> Tensor:
    """`other - alpha * input`."""
    return other - input * alpha


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * outer(vec1, vec2)`; with beta = 0 the input, even NaN, plays no part."""
    product = vec1.reshape(-1, 1) * vec2 * alpha
    return product if beta == 0 else product + input * beta


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Logarithm of the multivariate gamma function of dimension `p`."""
    result = ops.lgamma(input) + p * (p - 1) / 4 * math.log(math.pi)
    for i in range(1, p):
        result = result + ops.lgamma(input - i / 2)
    return result


def erfinv(input: Tensor) -> Tensor:
    """Inverse of the error function: MindSpore's value, improved by two steps of Newton's method."""
    guess = ops.stop_gradient(ops.erfinv(input))
    inside = ops.abs(input) < 1
    safe = ops.where(inside, guess, ops.zeros_like(guess))
    for _ in range(2):
        slope = 2 / math.sqrt(math.pi) * ops.exp(-safe * safe)
        safe = ops.stop_gradient(safe - (ops.erf(safe) - input) / slope)
    slope = 2 / math.sqrt(math.pi) * ops.exp(-safe * safe)
    return ops.where(inside, safe + (input - ops.stop_gradient(input)) / slope, guess)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers from length and angle, which are broadcast."""
    return complex(abs * ops.cos(angle), abs * ops.sin(angle))
