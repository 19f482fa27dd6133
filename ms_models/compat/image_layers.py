"""Convolution, pooling and the like as modules, with torch's parameter names and initial values."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from . import init
from .activations import prelu
from .convolution import conv, conv_transpose
from .layers import dropout
from .module import Module
from .padding import pad
from .pooling import Size, adaptive_avg_pool, avg_pool, max_pool, per_axis
from .rearrangement import pixel_shuffle


class _Convolution(Module):
    """Weight and bias drawn from U(-b, b) with b = 1 / sqrt(fan in)."""

    rank = 2
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Any = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{in_channels} and {out_channels} channels must be divisible by {groups} groups")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(kernel_size, self.rank)
        self.stride, self.dilation = per_axis(stride, self.rank), per_axis(dilation, self.rank)
        self.padding: Any = padding if isinstance(padding, str) else per_axis(padding, self.rank)
        pair = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(init.empty((*pair, *self.kernel_size), dtype))
        if bias:
            self.bias = Parameter(init.empty((out_channels,), dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
            init.uniform_(self.bias, -bound, bound)

    def construct(self, input: Tensor) -> Tensor:
        return conv(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Convolution):
    """Convolution of `[N, C, L]`."""

    rank = 1


class Conv2d(_Convolution):
    """Convolution of `[N, C, H, W]`."""


class ConvTranspose2d(_Convolution):
    """Transposed convolution of `[N, C, H, W]`; weight `[in, out / groups, kernel]`."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, dtype)
        self.output_padding = per_axis(output_padding, self.rank)

    def construct(self, input: Tensor) -> Tensor:
        return conv_transpose(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )


class MaxPool2d(Module):
    """Largest value of each window."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.settings = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    def construct(self, input: Tensor) -> Any:
        return max_pool(input, 2, *self.settings)


class AvgPool2d(Module):
    """Mean of each window."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.settings = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    def construct(self, input: Tensor) -> Tensor:
        return avg_pool(input, 2, *self.settings)


class AdaptiveAvgPool2d(Module):
    """Means over windows that give `output_size`."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def construct(self, input: Tensor) -> Tensor:
        return adaptive_avg_pool(input, 2, self.output_size)


class ReflectionPad2d(Module):
    """Pads height and width by mirroring; `padding` is a number or `(left, right, top, bottom)`."""

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else tuple(padding)

    def construct(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, "reflect")


class PixelShuffle(Module):
    """`[N, C r r, H, W]` to `[N, C, H r, W r]`."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def construct(self, input: Tensor) -> Tensor:
        return pixel_shuffle(input, self.upscale_factor)


class PReLU(Module):
    """Leaky ReLU with a learned slope, one or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.full(num_parameters, init, np.float32), dtype or ms.float32))

    def construct(self, input: Tensor) -> Tensor:
        return prelu(input, self.weight)


class Dropout2d(Module):
    """Zeroes whole channels of `[N, C, H, W]` with probability `p` in training and scales the others by 1/(1-p)."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def construct(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return input
        axes = (1,) * (2 if input.ndim > 2 else 0)
        return input * dropout(ops.ones((*input.shape[: input.ndim - 2], *axes), dtype=input.dtype), self.p)
