"""Convolutions, dropout of channels and the like as modules, with torch's parameter names and initial values."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from . import init
from .activations import prelu
from .channel_dropout import alpha_dropout, channel_dropout, feature_alpha_dropout
from .convolution import conv, conv_transpose, widths
from .module import Module
from .padding import pad
from .pooling import Size, per_axis
from .rearrangement import pixel_shuffle

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


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
        padding_mode: str = "zeros",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_mode not in _MODES or (self.transposed and padding_mode != "zeros"):
            raise ValueError(f"padding_mode {padding_mode!r} is not one of {', '.join(_MODES)} (zeros if transposed)")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{in_channels} and {out_channels} channels must be divisible by {groups} groups")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(kernel_size, self.rank)
        self.stride, self.dilation = per_axis(stride, self.rank), per_axis(dilation, self.rank)
        self.padding: Any = padding if isinstance(padding, str) else per_axis(padding, self.rank)
        self.padding_mode = padding_mode
        edges = widths(self.padding, self.kernel_size, self.dilation)
        self._edges = tuple(n for pair in reversed(edges) for n in pair)
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
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with another weight and bias, under the name by which subclasses know it in torch."""
        padding = self.padding
        if self.padding_mode != "zeros":
            input = pad(input, self._edges, _MODES[self.padding_mode])
            padding = 0
        return conv(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Convolution):
    """Convolution of `[N, C, L]`."""

    rank = 1


class Conv2d(_Convolution):
    """Convolution of `[N, C, H, W]`."""


class Conv3d(_Convolution):
    """Convolution of `[N, C, D, H, W]`."""

    rank = 3


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
        padding_mode: str = "zeros",
        dtype: Any = None,
    ) -> None:
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*sizes, bias, padding_mode, dtype)
        self.output_padding = per_axis(output_padding, self.rank)

    def construct(self, input: Tensor, output_size: Any = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._to_reach(input, output_size)
        steps = (self.stride, self.padding, extra, self.groups, self.dilation)
        return conv_transpose(input, self.weight, self.bias, *steps)

    def _to_reach(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """The output padding that gives a size."""
        wanted, spatial = tuple(output_size)[-self.rank :], input.shape[input.ndim - self.rank :]
        extra = []
        for i, size in enumerate(wanted):
            step, reach = self.stride[i], self.dilation[i] * (self.kernel_size[i] - 1)
            least = (spatial[i] - 1) * step - 2 * self.padding[i] + reach + 1
            if not least <= size < least + step:
                raise ValueError(f"requested output size {wanted}, but axis {i} gives {least} to {least + step - 1}")
            extra.append(size - least)
        return tuple(extra)


class ConvTranspose1d(ConvTranspose2d):
    """Transposed convolution of `[N, C, L]`."""

    rank = 1


class ConvTranspose3d(ConvTranspose2d):
    """Transposed convolution of `[N, C, D, H, W]`."""

    rank = 3


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

    unbatched = 0  # spatial axes of an input without a batch; torch takes three axes as [N, C, L] here

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p = p

    def construct(self, input: Tensor) -> Tensor:
        return channel_dropout(input, self.p, self.training, self.unbatched)


class Dropout1d(Dropout2d):
    """`Dropout2d` of `[N, C, L]`, or `[C, L]`."""

    unbatched = 1


class Dropout3d(Dropout2d):
    """`Dropout2d` of `[N, C, D, H, W]`, or `[C, D, H, W]`."""

    unbatched = 3


class AlphaDropout(Dropout2d):
    """Dropout of elements that keeps mean and variance of SELU's output."""

    def construct(self, input: Tensor) -> Tensor:
        return alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(Dropout2d):
    """`AlphaDropout` of whole channels."""

    def construct(self, input: Tensor) -> Tensor:
        return feature_alpha_dropout(input, self.p, self.training)
