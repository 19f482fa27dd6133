"""Batch, instance and group normalisation as modules, with torch's parameter and buffer names."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from .module import Module
from .normalization import batch_norm, group_norm, instance_norm


class _ChannelNorm(Module):
    """Scale and shift for each channel, and running statistics."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        kind = dtype or ms.float32
        self.register_parameter("weight", _parameter(1.0, num_features, kind) if affine else None)
        self.register_parameter("bias", _parameter(0.0, num_features, kind) if affine else None)
        self.running_mean: Tensor | None = None
        self.running_var: Tensor | None = None
        if track_running_stats:
            del self.running_mean, self.running_var
            self.register_buffer("running_mean", Tensor(np.zeros(num_features, np.float32), kind))
            self.register_buffer("running_var", Tensor(np.ones(num_features, np.float32), kind))
            self.register_buffer("num_batches_tracked", Tensor(0, ms.int64))

    def _count(self) -> None:
        if self.training and self.track_running_stats:
            count: Tensor = self._buffers["num_batches_tracked"]
            self.num_batches_tracked = count + 1


def _parameter(value: float, size: int, dtype: Any) -> Parameter:
    return Parameter(Tensor(np.full(size, value, np.float32), dtype))


class BatchNorm1d(_ChannelNorm):
    """Over the batch of `[N, C]` or `[N, C, L]`."""

    def construct(self, input: Tensor) -> Tensor:
        self._count()
        by_batch = self.training or not self.track_running_stats
        stats = (self.running_mean, self.running_var)
        return batch_norm(input, *stats, self.weight, self.bias, by_batch, self.momentum, self.eps)


class BatchNorm2d(BatchNorm1d):
    """Over the batch of `[N, C, H, W]`."""


class InstanceNorm2d(_ChannelNorm):
    """Over each channel of each sample of `[N, C, H, W]`."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)

    def construct(self, input: Tensor) -> Tensor:
        self._count()
        by_input = self.training or not self.track_running_stats
        x = input if input.ndim == 4 else input.expand_dims(0)
        stats = (self.running_mean, self.running_var)
        x = instance_norm(x, *stats, self.weight, self.bias, by_input, self.momentum, self.eps)
        return x if input.ndim == 4 else x.squeeze(0)


class GroupNorm(Module):
    """Over groups of channels of each sample."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, dtype: Any = None
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"{num_channels} channels must be divisible by {num_groups} groups")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        kind = dtype or ms.float32
        self.register_parameter("weight", _parameter(1.0, num_channels, kind) if affine else None)
        self.register_parameter("bias", _parameter(0.0, num_channels, kind) if affine else None)

    def construct(self, input: Tensor) -> Tensor:
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
