"""Layer normalisation."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.mesh import Group


class Kernel(nn.Cell):
    """`weight * (x - mean) / sqrt(var + eps) + bias` of fp32 by MindSpore's kernels."""

    def __init__(self, eps: float) -> None:
        super().__init__(auto_prefix=False)
        self.normalize = ops.LayerNorm(-1, -1, eps)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return self.normalize(x, weight, bias)[0]


class NormalizedRows(Kernel):
    """The same with a backward pass of its own, for CPU.

    With `h` the normalised rows, `r` the inverse deviation and `g = dy * weight`, the gradients are
    `dx = r (g - mean(g) - h mean(g h))` and, summed over rows, `dweight = sum(dy h)` and `dbias = sum(dy)`.

    Why products of matrices spread and sum rows and columns: see `ms_models/layers/norm.py`. The backward pass of
    MindSpore's kernel takes nearly three times as long (measured on 1024 x 512: 7.3 ms against 2.8).
    """

    def __init__(self, eps: float) -> None:
        super().__init__(eps)
        self.eps = eps
        self.multiply = ops.MatMul()

    def bprop(
        self, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        width = x.shape[-1]
        rows, upper = x.reshape(-1, width), dout.reshape(-1, width)
        row, column = weight.reshape(1, -1), weight.reshape(-1, 1) * (1.0 / width)
        ones, above = ops.ones_like(row), ops.ones((1, rows.shape[0]), ms.float32)
        centred = rows - self.multiply(rows.mean(axis=-1, keep_dims=True), ones)
        inverse = ops.rsqrt(ops.square(centred).mean(axis=-1, keep_dims=True) + self.eps)
        normal = centred * self.multiply(inverse, ones)
        both = upper * normal
        mean, pull = self.multiply(upper, column), self.multiply(both, column)
        of_x = upper * self.multiply(inverse, row) - self.multiply(inverse * mean, ones)
        of_x = of_x - normal * self.multiply(inverse * pull, ones)
        of_weight, of_bias = self.multiply(above, both), self.multiply(above, upper)
        return of_x.reshape(x.shape), of_weight.reshape(-1), of_bias.reshape(-1)


class LayerNorm(nn.Cell):
    """`weight * (x - mean) / sqrt(var + eps) + bias` over the last axis (Ba et al. 2016), computed in fp32.

    The variance is the biased one. MindSpore's kernel is as near to fp64 as torch's, forward and backward (measured on
    CPU: 1e-7 of the norm, 1e-6 where the mean is thirty times the deviation); so is the backward pass used on CPU.

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
        self.normalize = NormalizedRows(eps) if ms.get_current_device()[0] == "CPU" else Kernel(eps)
        self.enter = CopyToGroup(shared_by) if shared_by is not None and shared_by.size > 1 else None

    def construct(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if self.enter is not None:
            weight, bias = self.enter(weight), self.enter(bias)
        return self.normalize(x.astype(ms.float32), weight, bias).astype(x.dtype)
