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
    return ops.LayerNorm(axis, axis, eps)(input, scale, shift)[0]


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axes; half precision is computed in float32, as in torch."""
    axes = tuple(range(input.ndim - len(tuple(normalized_shape)), input.ndim))
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
