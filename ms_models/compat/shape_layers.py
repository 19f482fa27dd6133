"""Modules that rearrange elements, resize or combine: Flatten, Fold, Upsample, Bilinear and the like."""

from __future__ import annotations

import math
from typing import Any

from mindspore import Parameter, Tensor, ops

from . import init
from .interpolation import interpolate
from .module import Module
from .pooling import Size
from .rearrangement import bilinear, channel_shuffle, fold, pixel_unshuffle, unfold
from .shapes import unflatten


class Flatten(Module):
    """The axes from `start_dim` to `end_dim` as one; the batch stays by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def construct(self, input: Tensor) -> Tensor:
        return ops.flatten(input, start_dim=self.start_dim, end_dim=self.end_dim)


class Unflatten(Module):
    """Axis `dim` as several."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError("Unflatten takes the number of an axis; tensors of MindSpore have no names of axes")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def construct(self, input: Tensor) -> Tensor:
        return unflatten(input, self.dim, self.unflattened_size)


class Unfold(Module):
    """Windows of `[N, C, H, W]` as columns `[N, C window, L]`."""

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.settings = (kernel_size, dilation, padding, stride)

    def construct(self, input: Tensor) -> Tensor:
        return unfold(input, *self.settings)


class Fold(Module):
    """Columns `[N, C window, L]` added up to `[N, C, H, W]`."""

    def __init__(
        self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.settings = (output_size, kernel_size, dilation, padding, stride)

    def construct(self, input: Tensor) -> Tensor:
        return fold(input, *self.settings)


class PixelUnshuffle(Module):
    """`[N, C, H r, W r]` to `[N, C r r, H, W]`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def construct(self, input: Tensor) -> Tensor:
        return pixel_unshuffle(input, self.downscale_factor)


class ChannelShuffle(Module):
    """Channels of `groups` groups, dealt out in turn."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def construct(self, input: Tensor) -> Tensor:
        return channel_shuffle(input, self.groups)


class Upsample(Module):
    """Resizes the spatial axes to `size` or by `scale_factor`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def construct(self, input: Tensor) -> Tensor:
        settings = (self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)
        return interpolate(input, *settings)


class UpsamplingNearest2d(Upsample):
    """`Upsample` that repeats the nearest pixel."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """`Upsample` that interpolates between pixels, corners aligned."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class Bilinear(Module):
    """`x1^T W x2 + b`; weight `[out, in1, in2]`, both drawn from U(-1/sqrt(in1), 1/sqrt(in1))."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(init.empty((out_features, in1_features, in2_features), dtype))
        self.register_parameter("bias", Parameter(init.empty((out_features,), dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def construct(self, input1: Tensor, input2: Tensor) -> Tensor:
        return bilinear(input1, input2, self.weight, self.bias)
