"""Collectives that have a gradient: what tensor parallel layers put between their local computations.

They come in pairs, each the gradient of the other: copy and sum, gather and split. A replicated tensor has the same,
whole gradient on every rank; a sharded one has the gradient of its shard. Every rank of the group must make the same
calls in the same order, backwards too.
"""

from __future__ import annotations

from functools import cache

from mindspore import Tensor, nn, ops

from .distributed import ProcessGroup, ReduceOp, reduced, stacked


class _Sum(nn.Cell):
    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(auto_prefix=False)
        self.group = group

    def construct(self, x: Tensor) -> Tensor:
        return reduced(x, ReduceOp.SUM, self.group)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout,)


class _Copy(_Sum):
    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (reduced(dout, ReduceOp.SUM, self.group),)


class _SumBothWays(_Sum):
    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (reduced(dout, ReduceOp.SUM, self.group),)


class _Gather(nn.Cell):
    def __init__(self, group: ProcessGroup, axis: int) -> None:
        super().__init__(auto_prefix=False)
        self.group, self.axis = group, axis

    def construct(self, x: Tensor) -> Tensor:
        return _joined(x, self.group, self.axis)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (own_share(dout, self.group, self.axis),)


class _Split(_Gather):
    def construct(self, x: Tensor) -> Tensor:
        return own_share(x, self.group, self.axis)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (_joined(dout, self.group, self.axis),)


def _joined(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    rows = stacked(x, group)
    return ops.concat([rows[place] for place in range(group.size())], axis)


def own_share(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """This rank's part of `x` along an axis, without communication and without a gradient of its own.

    Raises:
        ValueError: the axis cannot be divided evenly; torch would give ranks shards of different lengths.
    """
    length, size = x.shape[axis], group.size()
    if length % size:
        raise ValueError(f"axis {axis} of a tensor of shape {x.shape} cannot be divided evenly among {size} ranks")
    share = length // size
    return x.narrow(axis, group.rank() * share, share)


_sum = cache(_Sum)
_copy = cache(_Copy)
_sum_both_ways = cache(_SumBothWays)
_gather = cache(_Gather)
_split = cache(_Split)


def sum_from_ranks(x: Tensor, group: ProcessGroup) -> Tensor:
    """Sum over the group, for partial results; backwards every rank passes the whole gradient on."""
    return x if group.size() == 1 else _sum(group)(x)


def copy_to_ranks(x: Tensor, group: ProcessGroup) -> Tensor:
    """`x` itself, where a replicated tensor enters sharded layers; backwards the gradients of the ranks are summed."""
    return x if group.size() == 1 else _copy(group)(x)


def sum_over_ranks(x: Tensor, group: ProcessGroup) -> Tensor:
    """Sum over the group, where every rank goes on with a loss of its own; backwards their gradients are summed."""
    return x if group.size() == 1 else _sum_both_ways(group)(x)


def gather_from_ranks(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """The shards of the group joined along `axis`; backwards each rank keeps the gradient of its shard."""
    return x if group.size() == 1 else _gather(group, axis % x.ndim)(x)


def split_to_ranks(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """This rank's shard of a replicated tensor along `axis`; backwards the gradients of the shards are joined.

    Raises:
        ValueError: the axis cannot be divided evenly.
    """
    return x if group.size() == 1 else _split(group, axis % x.ndim)(x)
