"""From slices to whole tensors and back: gathering, and summing into slices."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops

from ms_models.parallel.collectives.all_reduce import AllReduce
from ms_models.parallel.collectives.device import chosen, require_carried, share
from ms_models.parallel.collectives.stack import Stack
from ms_models.parallel.mesh import Group


class _Gather(nn.Cell):
    """Concatenation over the group along `axis`, in group order."""

    def __init__(self, group: Group, axis: int, native: bool | None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.axis = axis
        self.stack = Stack(group, native)

    def construct(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        stacked = self.stack(x)
        return ops.concat([stacked[i] for i in range(self.size)], self.axis)


class _ReduceScatter(nn.Cell):
    """Sum over the group; each member keeps its slice along `axis`."""

    def __init__(self, group: Group, axis: int, native: bool | None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.index = group.index
        self.axis = axis
        self.native = chosen(native)
        use_operator = self.native and group.size > 1
        self.reduce_scatter: Any = ops.ReduceScatter(ops.ReduceOp.SUM, group.name) if use_operator else None
        self.all_reduce = AllReduce(group, self.native)

    def construct(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        length = share(x, self.axis, self.size)
        if not self.native:
            return ops.split(self.all_reduce(x), length, self.axis)[self.index]
        require_carried(x)
        # The operator cuts the first axis, so the slices are stacked there.
        slices = [part.expand_dims(0) for part in ops.split(x, length, self.axis)]
        return self.reduce_scatter(ops.concat(slices, 0))[0]


class GatherFromGroup(nn.Cell):
    """Concatenation over the group along `axis` (>= 0), in group order; backward each rank keeps its own slice.

    Right where what follows is replicated: every rank then holds the same gradient.
    """

    def __init__(self, group: Group, axis: int, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.index = group.index
        self.axis = axis
        self.gather = _Gather(group, axis, native)

    def construct(self, x: Tensor) -> Tensor:
        return self.gather(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        if self.size == 1:
            return (dout,)
        return (ops.split(dout, x.shape[self.axis], self.axis)[self.index],)


class GatherForSharded(nn.Cell):
    """Concatenation over the group along `axis` (>= 0), in group order; backward sum, of which each keeps its slice.

    Right where each rank does something else with the whole, as column-parallel layers do in sequence parallelism: the
    gradient of the whole is then the sum over the ranks. With `ReduceScatterToGroup` behind those layers it replaces
    `CopyToGroup` and `ReduceFromGroup` (Korthikanti et al. 2022) at the same traffic.
    """

    def __init__(self, group: Group, axis: int, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.gather = _Gather(group, axis, native)
        self.reduce_scatter = _ReduceScatter(group, axis, native)

    def construct(self, x: Tensor) -> Tensor:
        return self.gather(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.reduce_scatter(dout),)


class ReduceScatterToGroup(nn.Cell):
    """Sum over the group, of which each rank keeps its slice along `axis` (>= 0); backward the slices are gathered.

    Raises:
        ValueError: when called: the ranks do not divide the axis.
    """

    def __init__(self, group: Group, axis: int, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.gather = _Gather(group, axis, native)
        self.reduce_scatter = _ReduceScatter(group, axis, native)

    def construct(self, x: Tensor) -> Tensor:
        return self.reduce_scatter(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.gather(dout),)
