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


class ScaledRows(nn.Cell):
    """`scale * unit_mean_square(x)` of fp32, with a backward pass of its own for CPU.

    With `r = 1 / sqrt(mean(x**2) + eps)` per row and `t = sum(dy * scale * x)` per row, the gradients are
    `dx = dy * r * scale - x * t * r**3 / width` and, summed over rows, `dscale = sum(dy * x * r)`.

    MindSpore's CPU kernels are quick where both operands have one shape and in matrix products, and slow where one is
    broadcast or several axes are summed (measured on 1024 x 512: 0.09 ms a product of equal shapes, 0.6 with a row or
    a column, 1.9 a sum over two axes). So rows and columns are spread by products of matrices here: 2 ms instead of 10
    forward and backward.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.multiply = ops.MatMul()

    def construct(self, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        spread = self.multiply(self.roots(rows, eps), scale.reshape(1, -1))
        return (rows * spread).reshape(x.shape)

    def roots(self, rows: Tensor, eps: float) -> Tensor:
        """`1 / sqrt(mean(x**2) + eps)`, `[N, 1]` of `[N, width]`."""
        return ops.rsqrt(ops.square(rows).mean(axis=-1, keep_dims=True) + eps)

    def bprop(self, x: Tensor, scale: Tensor, eps: float, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor, float]:
        width = x.shape[-1]
        rows, upper, row = x.reshape(-1, width), dout.reshape(-1, width), scale.reshape(1, -1)
        roots = self.roots(rows, eps)
        both = upper * rows
        pull = self.multiply(both, scale.reshape(-1, 1)) * (roots * roots * roots * (1.0 / width))
        of_x = upper * self.multiply(roots, row) - rows * self.multiply(pull, ops.ones_like(row))
        of_scale = self.multiply(roots.reshape(1, -1), both).reshape(-1)
        return of_x.reshape(x.shape), of_scale, 0.0


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
        self.rows = ScaledRows() if ms.get_current_device()[0] == "CPU" else None

    def scale(self) -> Tensor:
        """What normalised rows are multiplied by, `[width]`."""
        return self.weight if self.enter is None else self.enter(self.weight)

    def construct(self, x: Tensor) -> Tensor:
        if self.rows is not None:
            return self.rows(x.astype(ms.float32), self.scale(), self.eps).astype(x.dtype)
        return self.scaled(x)

    def scaled(self, x: Tensor) -> Tensor:
        """The same by plain arithmetic, rounded once to the format of `x`."""
        return (self.scale() * unit_mean_square(x, self.eps)).astype(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """`(1 + weight) * x / sqrt(mean(x**2) + eps)`: the weight is stored as its distance from 1."""

    def scale(self) -> Tensor:
        """What normalised rows are multiplied by, `[width]`."""
        return 1.0 + super().scale()
