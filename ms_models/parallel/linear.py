"""Linear layers cut over the ranks of a group. Weights are `[out, in]`, as in PyTorch.

Where a replicated tensor enters column-parallel layers it must pass `CopyToGroup` once, so that several layers that
read the same tensor (q, k and v) share one all-reduce in the backward pass.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import ReduceFromGroup
from ms_models.parallel.mesh import Group


class Linear(nn.Cell):
    """`x @ weight.T + bias` over the last axis."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(ops.zeros((outputs, inputs), ms.float32), name="weight")
        self.bias = Parameter(ops.zeros((outputs,), ms.float32), name="bias") if bias else None

    def construct(self, x: Tensor) -> Tensor:
        return ops.dense(x, self.weight, self.bias)


class ColumnParallelLinear(Linear):
    """Each rank holds some of the outputs: rows of the weight and of the bias. No communication.

    Args:
        inputs: full input width.
        outputs: full output width, divisible by the group.
    """

    def __init__(self, inputs: int, outputs: int, group: Group, *, bias: bool = False) -> None:
        assert outputs % group.size == 0, f"{outputs} outputs over {group.size} ranks"
        super().__init__(inputs, outputs // group.size, bias=bias)


class RowParallelLinear(Linear):
    """Each rank holds some of the inputs: columns of the weight. Partial results are summed, then the bias is added.

    Args:
        inputs: full input width, divisible by the group.
        outputs: full output width.
    """

    def __init__(self, inputs: int, outputs: int, group: Group, *, bias: bool = False) -> None:
        assert inputs % group.size == 0, f"{inputs} inputs over {group.size} ranks"
        super().__init__(inputs // group.size, outputs, bias=bias)
        self.reduce = ReduceFromGroup(group)

    def construct(self, x: Tensor) -> Tensor:
        y = self.reduce(ops.dense(x, self.weight))
        return y if self.bias is None else y + self.bias
