"""Random tensors in the shape and type of another one: what torch's `x.normal_()` and the like fill `x` with."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from .random import Generator, default_generator
from .whole import own_numbers, whole_shape


def _like(input: Tensor, numbers: Any) -> Tensor:
    return Tensor(own_numbers(input, np.asarray(numbers)), input.dtype)


def _source(generator: Generator | None) -> np.random.Generator:
    return (default_generator if generator is None else generator).numpy


def uniform_like(input: Tensor, low: float = 0, high: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [low, high)."""
    return _like(input, _source(generator).random(whole_shape(input)) * (high - low) + low)


def normal_like(input: Tensor, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Numbers from N(mean, std^2)."""
    return _like(input, _source(generator).standard_normal(whole_shape(input)) * std + mean)


def log_normal_like(input: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
    """Numbers whose logarithm is from N(mean, std^2)."""
    return _like(input, np.exp(_source(generator).standard_normal(whole_shape(input)) * std + mean))


def exponential_like(input: Tensor, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Numbers with the density `lambd * exp(-lambd * x)`."""
    return _like(input, _source(generator).standard_exponential(whole_shape(input)) / lambd)


def cauchy_like(input: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Numbers of a Cauchy distribution."""
    return _like(input, _source(generator).standard_cauchy(whole_shape(input)) * sigma + median)


def geometric_like(input: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Number of trials with the chance `p` until one succeeds, from 1 on."""
    return _like(input, _source(generator).geometric(p, whole_shape(input)))


def bernoulli_like(input: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability `p`, a number or a tensor, else 0."""
    chance = p.asnumpy() if isinstance(p, Tensor) else p
    return _like(input, _source(generator).random(whole_shape(input)) < chance)


_EXACT = {ms.float32: 2**24, ms.float64: 2**53, ms.float16: 2**11, ms.bfloat16: 2**8}


def random_like(input: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None) -> Tensor:
    """Whole numbers in [low, high); without `high` all that the type represents exactly."""
    if high is None:
        high = _EXACT[input.dtype] + 1 if input.dtype in _EXACT else np.iinfo(ms.dtype_to_nptype(input.dtype)).max
    return _like(input, _source(generator).integers(low, high, whole_shape(input)))
