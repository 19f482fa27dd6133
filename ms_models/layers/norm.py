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
    """`weight * x / sqrt(mean(x**2) + eps)` over the last axis (Zhang and Sennrich 2019), computed in fp32.

    Args:
        width: of the last axis.
        eps: added to the mean square.
        shared_by: ranks that hold the weight and see different parts (of the sequence, or heads): its gradient is
            summed over them. None where every rank sees the same.
    """

    def __init__(self, width: int, eps: float, shared_by: Group | None = None) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")
        self.eps = eps
        self.enter = CopyToGroup(shared_by) if shared_by is not None and shared_by.size > 1 else None

    def scale(self) -> Tensor:
        """The weight `[width]`."""
        return self.weight if self.enter is None else self.enter(self.weight)

    def construct(self, x: Tensor) -> Tensor:
        return self.scale() * unit_mean_square(x, self.eps).astype(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """`(1 + weight) * x / sqrt(mean(x**2) + eps)`: the weight is stored as its distance from 1."""

    def construct(self, x: Tensor) -> Tensor:
        return ((1.0 + self.scale()) * unit_mean_square(x, self.eps)).astype(x.dtype)
