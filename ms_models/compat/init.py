"""Initial values of parameters, in place, with torch's fans and gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from .random import Generator, default_generator
from .whole import own_numbers, whole_shape


def empty(shape: Sequence[int], dtype: Any = None) -> Tensor:
    """A tensor to be filled by one of the functions below."""
    return Tensor(np.zeros(tuple(shape), np.float32), dtype or ms.float32)


def _fill(tensor: Tensor, values: np.ndarray[Any, Any]) -> Tensor:
    values = own_numbers(tensor, values)
    # `assign_value` writes into the same object, so optimizers, tied weights and names keep seeing it.
    tensor.assign_value(Tensor(values.astype(np.float32), tensor.dtype))
    return tensor


def _numpy(generator: Generator | None) -> np.random.Generator:
    return (default_generator if generator is None else generator).numpy


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from U(a, b)."""
    return _fill(
        tensor, _numpy(generator).random(whole_shape(tensor), dtype=np.float32) * np.float32(b - a) + np.float32(a)
    )


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from N(mean, std^2)."""
    drawn = _numpy(generator).standard_normal(whole_shape(tensor), dtype=np.float32)
    return _fill(tensor, drawn * np.float32(std) + np.float32(mean))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill from N(mean, std^2) cut off at `a` and `b`: values outside are drawn again."""
    source = _numpy(generator)
    values = source.normal(mean, std, whole_shape(tensor))
    while (outside := (values < a) | (values > b)).any():
        values[outside] = source.normal(mean, std, int(outside.sum()))
    return _fill(tensor, values)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one number."""
    return _fill(tensor, np.full(whole_shape(tensor), val))


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity."""
    return _fill(tensor, np.eye(whole_shape(tensor)[0], whole_shape(tensor)[1]))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill the kernel `[out, in, size...]` of a convolution so that it hands on as many channels as there are.

    Raises:
        ValueError: not three to five dimensions, or `groups` does not divide the outputs.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    outputs, inputs = whole_shape(tensor)[:2]
    if outputs % groups:
        raise ValueError("dim 0 must be divisible by groups")
    values = np.zeros(whole_shape(tensor))
    centre = tuple(n // 2 for n in whole_shape(tensor)[2:])
    for group in range(groups):
        for i in range(min(outputs // groups, inputs)):
            values[(group * (outputs // groups) + i, i, *centre)] = 1.0
    return _fill(tensor, values)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill a matrix from N(0, std^2), with the fraction `sparsity` of each column set to zero."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = whole_shape(tensor)
    source = _numpy(generator)
    values = source.standard_normal((rows, columns)) * std
    for column in range(columns):
        values[source.permutation(rows)[: math.ceil(sparsity * rows)], column] = 0.0
    return _fill(tensor, values)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Recommended gain of a nonlinearity.

    Raises:
        ValueError: unknown nonlinearity.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    gains = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    linear = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    gains.update(dict.fromkeys((*linear, "sigmoid"), 1.0))
    if nonlinearity not in gains:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return gains[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """Number of inputs and outputs of one unit of a weight `[out, in, *kernel]`."""
    if tensor.ndim < 2:
        raise ValueError("fan in and fan out need a tensor with at least 2 dimensions")
    receptive = math.prod(whole_shape(tensor)[2:])
    return whole_shape(tensor)[1] * receptive, whole_shape(tensor)[0] * receptive


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of fan_in, fan_out")
    fan_in, fan_out = fans(tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill from U(-bound, bound) with bound = gain * sqrt(3 / fan) (He et al., 2015)."""
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill from N(0, gain^2 / fan) (He et al., 2015)."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from U(-bound, bound) with bound = gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill from N(0, gain^2 * 2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fill with a (semi) orthogonal matrix over the first axis, times `gain` (Saxe et al., 2013)."""
    rows, columns = whole_shape(tensor)[0], math.prod(whole_shape(tensor)[1:])
    flat = _numpy(generator).standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(flat)
    q = q * np.sign(np.diag(r))
    return _fill(tensor, gain * (q.T if rows < columns else q).reshape(whole_shape(tensor)))
