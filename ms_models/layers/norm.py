"""Root-mean-square normalisation."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops


class RMSNorm(nn.Cell):
    """`weight * x / sqrt(mean(x**2) + eps)` over the last axis (Zhang and Sennrich 2019), computed in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")
        self.eps = eps

    def construct(self, x: Tensor) -> Tensor:
        x32 = x.astype(ms.float32)
        scale = ops.rsqrt((x32 * x32).mean(axis=-1, keep_dims=True) + self.eps)
        return self.weight * (x32 * scale).astype(x.dtype)
