"""Softmax over rows, with a backward pass of its own on CPU."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops


class RowSoftmax(nn.Cell):
    """Softmax over the last axis of an fp32 tensor of any rank from 2 on.

    The gradient is `y * (dy - sum(y * dy))`. MindSpore's CPU kernels take a row sum as long as ten products, and spread
    a column over rows slowly; as products with a row or a column of ones they are quick (measured on 8192 rows of 256:
    13 ms become 3).
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.multiply = ops.MatMul()

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(x, -1)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        width = x.shape[-1]
        rows, upper = out.reshape(-1, width), dout.reshape(-1, width)
        ones = ops.ones((1, width), ms.float32)
        sums = self.multiply(rows * upper, ones.reshape(width, 1))
        return ((rows * (upper - self.multiply(sums, ones))).reshape(x.shape),)


ON_CPU = ms.get_context("device_target") == "CPU"
_by_rows = RowSoftmax()


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis of an fp32 tensor, with the gradient that is quicker on this device."""
    if ON_CPU:
        return _by_rows(x)
    return ops.softmax(x, -1)
