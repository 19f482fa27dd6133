"""Layer normalisation."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops


class LayerNorm(nn.Cell):
    """`weight * (x - mean) / sqrt(var + eps) + bias` over the last axis (Ba et al. 2016), computed in fp32.

    The variance is the biased one. MindSpore's kernel is as near to fp64 as torch's, forward and backward (measured on
    CPU: 1e-7 of the norm, 1e-6 where the mean is thirty times the deviation).

    Args:
        width: of the last axis; at least 2, because the kernel leaves a rounding error where the deviation is zero.
        eps: added to the variance.
    """

    def __init__(self, width: int, eps: float) -> None:
        assert width > 1, f"a layer norm over {width} value(s) is constant"
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")
        self.bias = Parameter(ops.zeros((width,), ms.float32), name="bias")
        self.normalize = ops.LayerNorm(-1, -1, eps)

    def construct(self, x: Tensor) -> Tensor:
        return self.normalize(x.astype(ms.float32), self.weight, self.bias)[0].astype(x.dtype)
