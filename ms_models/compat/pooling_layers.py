"""Pooling over one to three axes as modules."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from .module import Module
from .pooling import Size, adaptive_avg_pool, adaptive_max_pool, avg_pool, lp_pool, max_pool, max_unpool


class _Pooling(Module):
    """Windows over the last `rank` axes; `settings` are the arguments of the function after its input and rank."""

    rank = 2

    def __init__(self, *settings: Any) -> None:
        super().__init__()
        self.settings = settings


class MaxPool2d(_Pooling):
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
        super().__init__(kernel_size, stride, padding, dilation, ceil_mode, return_indices)

    def construct(self, input: Tensor) -> Any:
        return max_pool(input, self.rank, *self.settings)


class MaxPool1d(MaxPool2d):
    """`MaxPool2d` over one axis."""

    rank = 1


class MaxPool3d(MaxPool2d):
    """`MaxPool2d` over three axes."""

    rank = 3


class AvgPool2d(_Pooling):
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
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    def construct(self, input: Tensor) -> Tensor:
        return avg_pool(input, self.rank, *self.settings)


class AvgPool1d(AvgPool2d):
    """`AvgPool2d` over one axis."""

    rank = 1


class AvgPool3d(AvgPool2d):
    """`AvgPool2d` over three axes."""

    rank = 3


class LPPool2d(_Pooling):
    """`(sum x^p)^(1/p)` over each window."""

    def __init__(
        self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__(norm_type, kernel_size, stride, ceil_mode)

    def construct(self, input: Tensor) -> Tensor:
        return lp_pool(input, self.rank, *self.settings)


class LPPool1d(LPPool2d):
    """`LPPool2d` over one axis."""

    rank = 1


class LPPool3d(LPPool2d):
    """`LPPool2d` over three axes."""

    rank = 3


class AdaptiveAvgPool2d(Module):
    """Means over windows that give `output_size`."""

    rank = 2

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def construct(self, input: Tensor) -> Tensor:
        return adaptive_avg_pool(input, self.rank, self.output_size)


class AdaptiveAvgPool1d(AdaptiveAvgPool2d):
    """`AdaptiveAvgPool2d` over one axis."""

    rank = 1


class AdaptiveAvgPool3d(AdaptiveAvgPool2d):
    """`AdaptiveAvgPool2d` over three axes."""

    rank = 3


class AdaptiveMaxPool2d(Module):
    """Maxima over windows that give `output_size`."""

    rank = 2

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def construct(self, input: Tensor) -> Any:
        return adaptive_max_pool(input, self.rank, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(AdaptiveMaxPool2d):
    """`AdaptiveMaxPool2d` over one axis."""

    rank = 1


class AdaptiveMaxPool3d(AdaptiveMaxPool2d):
    """`AdaptiveMaxPool2d` over three axes."""

    rank = 3


class MaxUnpool2d(_Pooling):
    """Puts maxima back at their places; zero elsewhere."""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__(kernel_size, stride, padding)

    def construct(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        kernel_size, stride, padding = self.settings
        return max_unpool(input, indices, self.rank, kernel_size, stride, padding, output_size)


class MaxUnpool1d(MaxUnpool2d):
    """`MaxUnpool2d` over one axis."""

    rank = 1


class MaxUnpool3d(MaxUnpool2d):
    """`MaxUnpool2d` over three axes."""

    rank = 3
