"""The collectives as functions, for code that holds no Cell. Each Cell is made once per group and arguments."""

from __future__ import annotations

from functools import cache

from mindspore import Tensor

from ms_models.parallel.collectives.all_reduce import AllReduce, CopyToGroup, ReduceFromGroup
from ms_models.parallel.collectives.exchange import AllToAll, Shift
from ms_models.parallel.collectives.gather import GatherForSharded, GatherFromGroup, ReduceScatterToGroup
from ms_models.parallel.collectives.one_source import Broadcast, Transfer
from ms_models.parallel.mesh import Group

_all_reduce = cache(AllReduce)
_copy = cache(CopyToGroup)
_reduce = cache(ReduceFromGroup)
_gather = cache(GatherFromGroup)
_gather_for_sharded = cache(GatherForSharded)
_reduce_scatter = cache(ReduceScatterToGroup)
_all_to_all = cache(AllToAll)
_shift = cache(Shift)
_broadcast = cache(Broadcast)
_transfer = cache(Transfer)


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


def gather_for_sharded(x: Tensor, group: Group, axis: int) -> Tensor:
    """See `GatherForSharded`."""
    return _gather_for_sharded(group, axis)(x)


def reduce_scatter_to_group(x: Tensor, group: Group, axis: int) -> Tensor:
    """See `ReduceScatterToGroup`."""
    return _reduce_scatter(group, axis)(x)


def all_to_all(x: Tensor, group: Group, split_axis: int, concat_axis: int) -> Tensor:
    """See `AllToAll`."""
    return _all_to_all(group, split_axis, concat_axis)(x)


def shift(x: Tensor, group: Group, steps: int) -> Tensor:
    """See `Shift`."""
    return _shift(group, steps)(x)


def broadcast(x: Tensor, group: Group, source: int = 0) -> Tensor:
    """See `Broadcast`."""
    return _broadcast(group, source)(x)


def transfer(x: Tensor, group: Group, source: int, destination: int) -> Tensor:
    """See `Transfer`."""
    return _transfer(group, source, destination)(x)


def forget_cells() -> None:
    """Makes the functions build their Cells anew, for tests that replace a method for a while."""
    for made in (
        _all_reduce,
        _copy,
        _reduce,
        _gather,
        _gather_for_sharded,
        _reduce_scatter,
        _all_to_all,
        _shift,
        _broadcast,
        _transfer,
    ):
        made.cache_clear()
