"""`Stack`: every member's tensor on every member, from which the other collectives pick."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

from ms_models.parallel.collectives.all_reduce import AllReduce, nothing
from ms_models.parallel.collectives.device import chosen, require_carried
from ms_models.parallel.mesh import Group


class Stack(nn.Cell):
    """`[size, *shape]`: the tensors of a group's members in group order. Has no gradient of its own.

    Args:
        group: two ranks at least.
        native: whether to use AllGather, rather than a sum of tensors that are -0.0 elsewhere; None as the device can.
    """

    def __init__(self, group: Group, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.index = group.index
        self.native = chosen(native)
        self.gather: Any = ops.AllGather(group.name) if self.native and group.size > 1 else None
        self.all_reduce = AllReduce(group, self.native)

    def construct(self, x: Tensor) -> Tensor:
        row = x.expand_dims(0)
        if self.native:
            require_carried(x)
            return self.gather(row)
        filler = nothing(row)
        return self.all_reduce(ops.concat([row if i == self.index else filler for i in range(self.size)], 0))
