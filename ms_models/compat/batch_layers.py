"""Batch, instance and group normalisation as modules, with torch's parameter and buffer names."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from .module import Module
from .normalization import batch_norm, group_norm, instance_norm, local_response_norm


class _ChannelNorm(Module):
    """Scale and shift for each channel, and running statistics."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
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

    def _count(self) -> Any:
        """Count the batch; the momentum, which is 1 / count when none was given (a plain average of all batches)."""
        if not (self.training and self.track_running_stats):
            return 0.0 if self.momentum is None else self.momentum
        count: Tensor = self._buffers["num_batches_tracked"]
        self.num_batches_tracked = count + 1
        return 1.0 / (count + 1).astype(ms.float32) if self.momentum is None else self.momentum


def _parameter(value: float, size: int, dtype: Any) -> Parameter:
    return Parameter(Tensor(np.full(size, value, np.float32), dtype))


class _BatchNorm(_ChannelNorm):
    ranks: tuple[int, ...] = (4,)

    def construct(self, input: Tensor) -> Tensor:
        if input.ndim not in self.ranks:
            raise ValueError(f"expected {' or '.join(f'{n}D' for n in self.ranks)} input (got {input.ndim}D input)")
        momentum = self._count()
        by_batch = self.training or not self.track_running_stats
        stats = (self.running_mean, self.running_var)
        return batch_norm(input, *stats, self.weight, self.bias, by_batch, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Over the batch of `[N, C]` or `[N, C, L]`."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Over the batch of `[N, C, H, W]`."""


class BatchNorm3d(_BatchNorm):
    """Over the batch of `[N, C, D, H, W]`."""

    ranks = (5,)


class InstanceNorm2d(_ChannelNorm):
    """Over each channel of each sample of `[N, C, H, W]` or `[C, H, W]`."""

    rank = 2

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype)

    def construct(self, input: Tensor) -> Tensor:
        if input.ndim not in (self.rank + 1, self.rank + 2):
            raise ValueError(f"expected {self.rank + 1}D or {self.rank + 2}D input (got {input.ndim}D input)")
        batched = input.ndim == self.rank + 2
        # torch does not count the batches here, so running statistics without a momentum stay as they are
        momentum = 0.0 if self.momentum is None else self.momentum
        by_input = self.training or not self.track_running_stats
        x = input if batched else input.expand_dims(0)
        stats = (self.running_mean, self.running_var)
        x = instance_norm(x, *stats, self.weight, self.bias, by_input, momentum, self.eps)
        return x if batched else x.squeeze(0)


class InstanceNorm1d(InstanceNorm2d):
    """`InstanceNorm2d` of `[N, C, L]` or `[C, L]`."""

    rank = 1


class InstanceNorm3d(InstanceNorm2d):
    """`InstanceNorm2d` of `[N, C, D, H, W]` or `[C, D, H, W]`."""

    rank = 3


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


class LocalResponseNorm(Module):
    """Over neighbouring channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def construct(self, input: Tensor) -> Tensor:
        return local_response_norm(input, self.size, self.alpha, self.beta, self.k)
