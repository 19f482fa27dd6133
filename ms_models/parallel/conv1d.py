"""Linear layers as GPT-2 stores them, cut over the ranks of a group. Weights are `[in, out]`."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.linear import ColumnParallelLinear, RowParallelLinear, like
from ms_models.parallel.mesh import Group


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight` over the last axis, in the format of `x`; as one matrix, which is faster than a batch of them."""
    inputs, outputs = weight.shape
    return ops.matmul(x.reshape(-1, inputs), like(weight, x)).reshape(x.shape[:-1] + (outputs,))


class ColumnParallelConv1D(ColumnParallelLinear):
    """Each rank holds some of the outputs: columns of the weight, entries of the bias. No communication.

    A fused layer has its parts side by side, and a rank its share of each.
    """

    def __init__(self, inputs: int, outputs: int, group: Group, *, bias: bool = False) -> None:
        super().__init__(inputs, outputs, group, bias=bias)
        self.weight = transposed(self.weight)

    def construct(self, x: Tensor) -> Tensor:
        y = product(x, self.weight)
        return y if self.bias is None else y + like(self.bias, y)


class RowParallelConv1D(RowParallelLinear):
    """Each rank holds some of the inputs: rows of the weight. Partial results are summed, then the bias is added."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        group: Group,
        *,
        bias: bool = False,
        leave: nn.Cell | None = None,
        shared_bias: bool = False,
    ) -> None:
        super().__init__(inputs, outputs, group, bias=bias, leave=leave, shared_bias=shared_bias)
        self.weight = transposed(self.weight)

    def multiply(self, x: Tensor) -> Tensor:
        return product(x, self.weight)


def transposed(weight: Parameter) -> Parameter:
    """A parameter of zeros of the transposed shape, under the same name."""
    outputs, inputs = weight.shape
    return Parameter(ops.zeros((inputs, outputs), ms.float32), name="weight")
