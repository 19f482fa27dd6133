"""Layer and RMS normalisation over the trailing axes, as functions and modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from .module import Module

# torch takes the machine epsilon of the data type when RMSNorm gets none.
_EPSILON = {ms.float16: 2.0**-10, ms.bfloat16: 2.0**-7, ms.float32: 2.0**-23, ms.float64: 2.0**-52}


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last `len(normalized_shape)` axes; biased variance."""
    shape = tuple(normalized_shape)
    axis = input.ndim - len(shape)
    if input.shape[axis:] != shape:
        raise ValueError(f"layer_norm over {shape} got an input of shape {input.shape}")
    scale = ops.ones(shape, dtype=input.dtype) if weight is None else weight
    shift = ops.zeros(shape, dtype=input.dtype) if bias is None else bias
    if input.size == 0:
        return input
    if all(n == 1 for n in shape):  # the kernel leaves a rounding error where the difference from the mean is zero
        return (input - input) * scale + shift
    return ops.LayerNorm(axis, axis, eps)(input, scale, shift)[0]


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axes; half precision is computed in float32, as in torch."""
    axes = tuple(range(input.ndim - len(tuple(normalized_shape)), input.ndim))
    if input.size == 0:
        return input
    if eps is None:
        eps = _EPSILON[input.dtype]
    x = input.astype(ms.float32) if input.dtype in (ms.float16, ms.bfloat16) else input
    x = x * ops.rsqrt(ops.mean(x * x, axes, True) + eps)
    if weight is not None:
        x = x * weight
    return x.astype(input.dtype)


class LayerNorm(Module):
    """Layer normalisation with `weight` and `bias` of shape `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        dtype = dtype or ms.float32
        ones = Parameter(ops.ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        zeros = Parameter(ops.zeros(self.normalized_shape, dtype=dtype)) if elementwise_affine and bias else None
        self.register_parameter("weight", ones)
        self.register_parameter("bias", zeros)

    def construct(self, input: Tensor) -> Tensor:
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Root-mean-square normalisation with `weight` of shape `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        dtype = dtype or ms.float32
        ones = Parameter(ops.ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", ones)

    def construct(self, input: Tensor) -> Tensor:
        return rms_norm(input, self.normalized_shape, self.weight, self.eps)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalisation of each channel (axis 1) over all other axes.

    In training by the batch's mean and biased variance, and the running ones move by `momentum` towards the mean and
    the unbiased variance; otherwise by the running ones.
    """
    if input.size == 0:
        return input
    shape = (1, -1, *[1] * (input.ndim - 2))
    if training:
        mean, var = _moments(input, (0, *range(2, input.ndim)))
        if running_mean is not None and running_var is not None:
            count = input.size // input.shape[1]
            _move(running_mean, mean, momentum)
            _move(running_var, var * (count / max(count - 1, 1)), momentum)
    else:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm without running statistics needs training=True")
        mean, var = running_mean.reshape(shape), running_var.reshape(shape)
    return _scaled((input - mean) * ops.rsqrt(var + eps), weight, bias)


def _moments(x: Tensor, axes: Any) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over `axes`, which stay with length 1."""
    mean = x.mean(axes, True)
    return mean, ((x - mean) * (x - mean)).mean(axes, True)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`x weight + bias` with one number for each channel (axis 1)."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    if weight is not None:
        x = x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _move(running: Tensor, value: Tensor, momentum: float) -> None:
    value = value.reshape(-1)
    running.copy_(ops.stop_gradient(running * (1 - momentum) + value.astype(running.dtype) * momentum))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalisation of each channel of each sample; running statistics move towards the average over the batch."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    mean, var = _moments(input, tuple(range(2, input.ndim)))
    if running_mean is not None and running_var is not None:
        count = input.size // (input.shape[0] * input.shape[1])
        _move(running_mean, mean.mean(0), momentum)
        _move(running_var, var.mean(0) * (count / max(count - 1, 1)), momentum)
    return _scaled((input - mean) * ops.rsqrt(var + eps), weight, bias)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalisation over groups of channels (axis 1) of each sample."""
    if input.size == 0:
        return input
    x = input.reshape(input.shape[0], num_groups, -1)
    mean, var = _moments(x, -1)
    return _scaled(((x - mean) * ops.rsqrt(var + eps)).reshape(input.shape), weight, bias)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """`x / (k + alpha mean(x^2 over size neighbouring channels))^beta`; missing neighbours count as zeros."""
    if input.size == 0:
        return input
    channels = input.shape[1]
    squares = input * input
    left = ops.zeros((input.shape[0], size // 2, *input.shape[2:]), dtype=input.dtype)
    right = ops.zeros((input.shape[0], (size - 1) // 2, *input.shape[2:]), dtype=input.dtype)
    parts = [p for p in (left, squares, right) if p.shape[1] > 0]
    padded = ops.cat(parts, 1) if len(parts) > 1 else squares
    total = padded.narrow(1, 0, channels)
    for i in range(1, size):
        total = total + padded.narrow(1, i, channels)
    return input / ops.pow(total * (alpha / size) + k, beta)
