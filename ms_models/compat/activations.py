"""Activation modules whose arguments differ from MindSpore's."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .module import Module

EXACT_CLASSES = 256
"""Up to so many classes the logarithm of softmax is exact to the last digits."""


class GELU(Module):
    """Gaussian error linear unit; `approximate` is `none` (torch's default, exact) or `tanh`."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
        self.approximate = approximate

    def construct(self, input: Tensor) -> Tensor:
        return ops.gelu(input, approximate=self.approximate)


class Softmax(Module):
    """Softmax along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Tensor) -> Tensor:
        return ops.softmax(input, self.dim)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`log(1 + exp(beta x)) / beta`, `x` itself where `beta x` exceeds `threshold`."""
    scaled = input * beta
    linear = scaled > threshold
    safe = ops.where(linear, ops.zeros_like(scaled), scaled)
    size = ops.where(safe > 0, safe, -safe)  # the derivative of `abs` is 0 at 0, and 1/2 is wanted of the sum
    return ops.where(linear, input, (ops.relu(safe) + ops.log1p(ops.exp(-size))) / beta)


def logsigmoid(input: Tensor) -> Tensor:
    """Logarithm of the sigmoid; MindSpore's is off by 4e-6, as its `exp` is, which `exp2` is not."""
    size = ops.where(input < 0, -input, input)  # its derivative at 0 is 1, so that of the result is 1/2
    return -ops.relu(-input) - ops.log1p(ops.exp2(size * -math.log2(math.e)))


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """`x` above `threshold`, elsewhere `value`."""
    return ops.where(input > threshold, input, ops.full_like(input, value))


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """`a * sigmoid(b)` of the two halves along `dim`."""
    half = input.shape[dim] // 2
    return input.narrow(dim, 0, half) * ops.sigmoid(input.narrow(dim, half, half))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """`x` above zero, `weight x` below; one weight, or one for each channel (axis 1)."""
    if weight.size != 1:
        weight = weight.reshape((-1, *[1] * (input.ndim - 2)))
    elif weight.ndim > 0:
        weight = weight.reshape(())
    return ops.where(input > 0, input, weight * input)


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Tensor:
    """Leaky ReLU whose slope is drawn per element from U(lower, upper) in training, else their mean."""
    if training:
        slope = ops.rand_like(input) * (upper - lower) + lower
    else:
        slope = ops.full_like(input, (lower + upper) / 2)
    return ops.where(input > 0, input, input * slope)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """`x` outside of `[-lambd, lambd]`, 0 inside."""
    return ops.where(ops.logical_or(input > lambd, input < -lambd), input, ops.zeros_like(input))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """`x - lambd` above `lambd`, `x + lambd` below `-lambd`, 0 between."""
    return ops.where(input > lambd, input - lambd, ops.where(input < -lambd, input + lambd, ops.zeros_like(input)))


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`x` cut to `[min_val, max_val]`; no gradient at the bounds."""
    inside = ops.logical_and(input > min_val, input < max_val)
    bound = ops.where(input <= min_val, ops.full_like(input, min_val), ops.full_like(input, max_val))
    return ops.where(inside, input, bound)


def softmin(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Softmax of `-input` along `dim`; a scalar gives 1."""
    negative = -input if dtype is None else -input.astype(dtype)
    return ops.softmax(negative, dim) if input.ndim > 0 else ops.softmax(negative.reshape(1), 0).reshape(())


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent, from that of half the argument: the kernel of MindSpore is off by 1e-4 at 5, and above 1."""
    half = ops.tanh(input * 0.5)
    return 2.0 * half / (1.0 + half * half)


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Softmax along `dim`; a scalar gives 1."""
    if input.ndim == 0:
        return ops.softmax(input.reshape(1), 0, dtype=dtype).reshape(())
    return ops.softmax(input, dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Logarithm of softmax along `dim`; a scalar, for which the gradient of MindSpore's own never returns, gives 0.

    MindSpore's is off by 4e-6 on the CPU, and its gradient by 3e-6; of few classes the gradients of a batch nearly
    cancel. `logsumexp` is ten times as exact, and slower than a large vocabulary allows.
    """
    input = input if dtype is None else input.astype(dtype)
    if input.ndim == 0:
        return input - input
    if input.dtype == ms.float32 and 0 < input.shape[dim] <= EXACT_CLASSES:
        return input - ops.logsumexp(input, dim, True)
    return ops.log_softmax(input, dim)


def tanhshrink(input: Tensor) -> Tensor:
    """`x - tanh(x)`."""
    return input - tanh(input)


def mish(input: Tensor) -> Tensor:
    """`x tanh(softplus(x))`."""
    # tanh(log(1 + e)) is (e^2 + 2 e) / (e^2 + 2 e + 2), 1 where e would overflow
    e = ops.exp(ops.minimum(input, ops.full_like(input, 20.0)))
    n = e * (e + 2)
    return input * n / (n + 2)


def selu(input: Tensor) -> Tensor:
    """`s x` above zero, `s a (exp(x) - 1)` below, with the two constants of self-normalising networks."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    below = ops.where(input > 0, ops.zeros_like(input), input)
    return scale * ops.where(input > 0, input, alpha * ops.expm1(below))
