"""Communication between ranks: the only module that touches communication operators.

MindSpore's CPU backend is complete for one collective only, the sum-AllReduce of fp32 and fp16. There, everything else
is built from it, exactly: the parts a rank does not hold are filled with -0.0, the one value whose addition changes no
float (x + -0.0 is x for every x, either zero included). On Ascend the native operators are used where they save
traffic. Both ways have the same gradient, so a model does not know which it runs on.

Each collective is a Cell that a layer makes once; the function of the same meaning is for code that holds no Cell.
A group of one is the identity everywhere. All take tensors of any shape in fp32, fp16, bf16, int32 or int64. Integers
are carried exactly; fp64, booleans and other integers are refused with a TypeError: cast them first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_models.parallel.mesh import Group

# Integers cross as digits of 12 bits in fp32: sums of up to 4096 digits stay at or below 2**24 and are exact.
DIGIT = 4096


def has_native_collectives() -> bool:
    """Whether the device runs every collective itself (Ascend), rather than the sum-AllReduce only (CPU)."""
    return bool(ms.get_current_device()[0] != "CPU")


class AllReduce(nn.Cell):
    """Sum over the group. Integers wrap around as in their dtype. The gradient is the sum of the group's gradients."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.native = has_native_collectives()
        self.sum: Any = ops.AllReduce(ops.ReduceOp.SUM, group.name) if group.size > 1 else None

    def construct(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        if x.dtype == ms.float32 or x.dtype == ms.float16:
            return self.sum(x)
        if x.dtype == ms.bfloat16:
            return self.sum(x) if self.native else self.sum(x.astype(ms.float32)).astype(ms.bfloat16)
        if x.dtype == ms.int32:
            return self.sum(x) if self.native else self._sum_integers(x, 3)
        if x.dtype == ms.int64:
            return self.sum(x) if self.native else self._sum_integers(x, 6)
        raise TypeError("collectives carry fp32, fp16, bf16, int32 and int64; cast other tensors first")

    def _sum_integers(self, x: Tensor, count: int) -> Tensor:
        digits = []
        rest = x
        for _ in range(count - 1):
            above = ops.floor_div(rest, DIGIT)
            digits.append((rest - above * DIGIT).astype(ms.float32))
            rest = above
        digits.append(rest.astype(ms.float32))
        sums = self.sum(ops.stack(digits)).astype(x.dtype)
        total = sums[count - 1]
        for place in range(count - 1):
            total = total * DIGIT + sums[count - 2 - place]
        return total


class CopyToGroup(nn.Cell):
    """Identity forward, sum over the group backward: where a replicated tensor enters sharded layers."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.all_reduce = AllReduce(group)

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.all_reduce(dout),)


class ReduceFromGroup(nn.Cell):
    """Sum over the group forward, identity backward: where partial results of sharded layers become replicated."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.all_reduce = AllReduce(group)

    def construct(self, x: Tensor) -> Tensor:
        return self.all_reduce(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout,)


class GatherFromGroup(nn.Cell):
    """Concatenation over the group along `axis` (>= 0), in group order; backward each rank keeps its own slice.

    Right where what follows is replicated: every rank then holds the same gradient.
    """

    def __init__(self, group: Group, axis: int) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.index = group.index
        self.axis = axis
        self.native = has_native_collectives()
        self.gather: Any = ops.AllGather(group.name) if group.size > 1 else None
        self.all_reduce = AllReduce(group)

    def construct(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        row = x.expand_dims(0)
        if self.native:
            stacked = self.gather(row)
        else:
            filler = ops.full(row.shape, -0.0, dtype=row.dtype)
            stacked = self.all_reduce(ops.concat([row if i == self.index else filler for i in range(self.size)], 0))
        return ops.concat([stacked[i] for i in range(self.size)], self.axis)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        if self.size == 1:
            return (dout,)
        return (ops.split(dout, x.shape[self.axis], self.axis)[self.index],)


class Broadcast(nn.Cell):
    """The tensor of one member (`source` is an index within the group), on every member. Has no gradient."""

    def __init__(self, group: Group, source: int = 0) -> None:
        super().__init__(auto_prefix=False)
        assert 0 <= source < group.size, f"source {source} is outside a group of {group.size}"
        self.is_source = group.index == source
        self.all_reduce = AllReduce(group)

    def construct(self, x: Tensor) -> Tensor:
        return ops.stop_gradient(self.all_reduce(x if self.is_source else ops.full(x.shape, -0.0, dtype=x.dtype)))


_all_reduce = cache(AllReduce)
_copy = cache(CopyToGroup)
_reduce = cache(ReduceFromGroup)
_gather = cache(GatherFromGroup)
_broadcast = cache(Broadcast)


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """See `AllReduce`."""
    return _all_reduce(group)(x)


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """See `CopyToGroup`."""
    return _copy(group)(x)


def reduce_from_group(x: Tensor, group: Group) -> Tensor:
    """See `ReduceFromGroup`."""
    return _reduce(group)(x)


def gather_from_group(x: Tensor, group: Group, axis: int) -> Tensor:
    """See `GatherFromGroup`."""
    return _gather(group, axis)(x)


def broadcast(x: Tensor, group: Group, source: int = 0) -> Tensor:
    """See `Broadcast`."""
    return _broadcast(group, source)(x)
