"""Layer normalisation."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.mesh import Group


class LayerNorm(nn.Cell):
    """`weight * (x - mean) / sqrt(var + eps) + bias` over the last axis (Ba et al. 2016), computed in fp32.

    The variance is the biased one. MindSpore's kernel is as near to fp64 as torch's, forward and backward (measured on
    CPU: 1e-7 of the norm, 1e-6 where the mean is thirty times the deviation).

    Args:
        width: of the last axis; at least 2, because the kernel leaves a rounding error where the deviation is zero.
        eps: added to the variance.
        shared_by: ranks that hold the parameters and see different parts of the sequence: gradients are summed over
            them. None where every rank sees the same.
    """

    def __init__(self, width: int, eps: float, shared_by: Group | None = None) -> None:
        assert width > 1, f"a layer norm over {width} value(s) is constant"
        super().__init__()
        self.weight = Parameter(ops.ones((width,), ms.float32), name="weight")
        self.bias = Parameter(ops.zeros((width,), ms.float32), name="bias")
        self.normalize = ops.LayerNorm(-1, -1, eps)
        self.enter = CopyToGroup(shared_by) if shared_by is not None and shared_by.size > 1 else None

    def construct(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if self.enter is not None:
            weight, bias = self.enter(weight), self.enter(bias)
        return self.normalize(x.astype(ms.float32), weight, bias)[0].astype(x.dtype)
