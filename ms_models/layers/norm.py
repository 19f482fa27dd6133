"""Root-mean-square normalisation."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.mesh import Group


def unit_mean_square(x: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x**2) + eps)` over the last axis, in fp32 whatever `x` is."""
    x32 = x.astype(ms.float32)
    return x32 * ops.rsqrt((x32 * x32).mean(axis=-1, keep_dims=True) + eps)


class RMSNorm(nn.Cell):
    """`weight * x / sqrt(mean(x**2) + eps)` over the last axis (Zhang and Sennrich 2019), computed in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")
        self.eps = eps

    def construct(self, x: Tensor) -> Tensor:
        return self.weight * unit_mean_square(x, self.eps).astype(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """`(1 + weight) * x / sqrt(mean(x**2) + eps)`: the weight is stored as its distance from 1."""

    def construct(self, x: Tensor) -> Tensor:
        return ((1.0 + self.weight) * unit_mean_square(x, self.eps)).astype(x.dtype)


class HeadRMSNorm(RMSNorm):
    """`RMSNorm` over the width of each head, with one weight for all heads.

    Every rank holds the weight but sees its own heads only, so the gradient is summed over the group.
    """

    def __init__(self, head_dim: int, eps: float, group: Group) -> None:
        super().__init__(head_dim, eps)
        self.enter = CopyToGroup(group)

    def construct(self, x: Tensor) -> Tensor:
        return self.enter(self.weight) * unit_mean_square(x, self.eps).astype(x.dtype)
