"""Process groups and collectives with torch's meaning: one process, or the ranks that `msrun` starts.

In one process every collective is exact and immediate. With several, sums of float32 and float16 are MindSpore's
AllReduce; everything else is carried by that one operation too, byte for byte, because it is the only collective whose
kernel exists on every target and in every group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


class ReduceOp(Enum):
    """How values of several ranks become one."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class ProcessGroup:
    """Some of the ranks; `name` is MindSpore's, None for a group within one process."""

    ranks: tuple[int, ...]
    name: str | None

    def rank(self) -> int:
        """Place of this process in the group, -1 outside it."""
        return self.ranks.index(_world_rank()) if _world_rank() in self.ranks else -1

    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


class Work:
    """Result of a collective with `async_op`: it is complete already."""

    def wait(self, timeout: Any = None) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Always true."""
        return True


_world: list[ProcessGroup] = []  # empty, or the one world group
_created: list[ProcessGroup] = []


def launched_ranks() -> tuple[int, int]:
    """Rank and number of ranks that `msrun` gave this process; (0, 1) when it was started alone."""
    return int(os.environ.get("RANK_ID", "0")), int(os.environ.get("MS_WORKER_NUM", "1"))


def init_process_group(backend: str | None = None, world_size: int = -1, rank: int = -1) -> None:
    """Join the ranks that `msrun` started, or a world of one when the process was started alone.

    Raises:
        ValueError: already initialised, or `world_size` or `rank` are not those of the launch.
    """
    if _world:
        raise ValueError("trying to initialize the default process group twice!")
    launched_rank, launched_size = launched_ranks()
    if world_size not in (-1, launched_size) or rank not in (-1, launched_rank):
        raise ValueError(
            f"asked for rank {rank} of {world_size}, but this process is rank {launched_rank} of {launched_size}; "
            f"start {world_size} processes with msrun --worker_num={world_size}"
        )
    if launched_size == 1:
        _world.append(ProcessGroup((0,), None))
        return
    from mindspore.communication import GlobalComm, init

    init()
    _world.append(ProcessGroup(tuple(range(launched_size)), GlobalComm.WORLD_COMM_GROUP))


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Forget a group, or everything; MindSpore closes its connections when the process ends."""
    if group is None:
        _default()
        _world.clear()


def is_initialized() -> bool:
    """Whether `init_process_group` was called."""
    return bool(_world)


def _default() -> ProcessGroup:
    if not _world:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return _world[0]


def _world_rank() -> int:
    return launched_ranks()[0]


def get_rank(group: ProcessGroup | None = None) -> int:
    """Rank of this process in the world or in a group.

    Raises:
        ValueError: not initialised.
    """
    return (group or _default()).rank()


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Number of ranks in the world or in a group.

    Raises:
        ValueError: not initialised.
    """
    return (group or _default()).size()


def get_backend(group: ProcessGroup | None = None) -> str:
    """`hccl` on Ascend, `gloo` elsewhere: torch's word for collectives on the CPU."""
    _default()
    return "hccl" if ms.get_context("device_target") == "Ascend" else "gloo"


def default_backend(device: Any) -> str:
    """torch's word for the collectives of a kind of device."""
    kind = str(device).partition(":")[0]
    return {"cuda": "nccl", "npu": "hccl", "xpu": "xccl"}.get(kind, "gloo")


def new_group(ranks: Sequence[int] | None = None) -> ProcessGroup | None:
    """A group of some ranks; every rank must call it, and outside the group None comes back."""
    world = _default()
    members = world.ranks if ranks is None else tuple(sorted(ranks))
    if members == world.ranks:
        return world
    name = f"compat_{len(_created)}_" + "_".join(map(str, members))
    group = ProcessGroup(members, name if len(members) > 1 else None)
    _created.append(group)
    if _world_rank() not in members:
        return None
    if group.name is not None:
        from mindspore.communication import create_group

        create_group(group.name, list(members))
    return group


# -- collectives: tensors are overwritten in place, as in torch
def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Combine `tensor` of every rank and leave the result in it."""
    used = group or _default()
    if used.size() > 1:
        write(tensor, _reduced(tensor, op, used))
    return Work() if async_op else None


def broadcast(
    tensor: Tensor, src: int | None = None, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Overwrite `tensor` with that of world rank `src`."""
    used = group or _default()
    src = source_rank(src, used)
    if used.size() > 1:
        write(tensor, Tensor(_rows(tensor, used)[used.ranks.index(src)], tensor.dtype))
    return Work() if async_op else None


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Overwrite the tensors of `tensor_list` with `tensor` of every rank, in rank order."""
    used = group or _default()
    for target, row in zip(tensor_list, _rows(tensor, used), strict=True):
        write(target, Tensor(row, tensor.dtype))
    return Work() if async_op else None


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Overwrite `output_tensor` with `input_tensor` of every rank, joined along the first axis or stacked."""
    rows = _rows(input_tensor, group or _default())
    write(output_tensor, Tensor(rows.reshape(output_tensor.shape), input_tensor.dtype))
    return Work() if async_op else None


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine `input` of every rank and keep this rank's share of it, along the first axis, in `output`."""
    used = group or _default()
    whole = _reduced(input, op, used) if used.size() > 1 else input
    write(output, whole.reshape((used.size(), *output.shape))[used.rank()])
    return Work() if async_op else None


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Wait until every rank is here."""
    used = group or _default()
    if used.name is not None:
        ops.AllReduce(ops.ReduceOp.SUM, used.name)(Tensor(np.zeros(1, np.float32))).asnumpy()
    return Work() if async_op else None


def spawn(fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1) -> None:
    """Call `fn(rank, *args)` in this process: `msrun` has started the ranks.

    Raises:
        RuntimeError: `nprocs` is not the number of ranks that were started.
    """
    rank, size = launched_ranks()
    if nprocs != size:
        raise RuntimeError(
            f"the script wants {nprocs} processes but {size} were started; use msrun --worker_num={nprocs}"
        )
    fn(rank, *args)


def default_group() -> ProcessGroup:
    """The group of all ranks.

    Raises:
        ValueError: not initialised.
    """
    return _default()


def reduced(tensor: Tensor, op: ReduceOp, group: ProcessGroup) -> Tensor:
    """`tensor` of every rank of the group combined, as a new tensor; no gradient is defined here."""
    return _reduced(tensor, op, group) if group.size() > 1 else tensor.copy()


def stacked(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """`tensor` of every rank of the group along a new first axis, exact; no gradient is defined here."""
    row = tensor.expand_dims(0)
    if group.size() == 1:
        return row
    if tensor.dtype not in (ms.float32, ms.float16):
        return Tensor(_rows(tensor, group), tensor.dtype)
    filler = ops.full(row.shape, -0.0, dtype=row.dtype)  # x + -0.0 is x for every x, either zero included
    rows = [row if place == group.rank() else filler for place in range(group.size())]
    return ops.AllReduce(ops.ReduceOp.SUM, group.name)(ops.concat(rows, 0))


def source_rank(rank: int | None, group: ProcessGroup) -> int:
    """A rank of the world that must be in the group; its first one when none is given.

    Raises:
        ValueError: the rank is outside the group.
    """
    if rank is not None and rank not in group.ranks:
        raise ValueError(f"rank {rank} is not part of the group of ranks {list(group.ranks)}")
    return group.ranks[0] if rank is None else rank


def write(target: Tensor, value: Tensor) -> None:
    """Give a tensor new values in place."""
    # the same object keeps the new values, so every name for it sees them
    target.assign_value(value.reshape(target.shape).astype(target.dtype))


def _reduced(tensor: Tensor, op: ReduceOp, group: ProcessGroup) -> Tensor:
    if op in (ReduceOp.SUM, ReduceOp.AVG) and tensor.dtype in (ms.float32, ms.float16):
        total = ops.AllReduce(ops.ReduceOp.SUM, group.name)(tensor)
        return total / group.size() if op is ReduceOp.AVG else total
    if tensor.dtype == ms.bfloat16:
        return _reduced(tensor.astype(ms.float32), op, group).astype(ms.bfloat16)
    combine: Any = {"sum": np.sum, "avg": np.mean, "product": np.prod, "min": np.min, "max": np.max}[op.value]
    return Tensor(combine(_rows(tensor, group), axis=0), tensor.dtype)


def _rows(tensor: Tensor, group: ProcessGroup) -> np.ndarray[Any, Any]:
    """`tensor` of every rank, stacked: exact for every data type, because what is added are bytes and zeros."""
    wide = tensor.dtype == ms.bfloat16  # numpy has no bfloat16; float32 holds its values exactly
    own = np.ascontiguousarray((tensor.astype(ms.float32) if wide else tensor).asnumpy())
    if group.size() == 1:
        return own[None]
    flat = np.frombuffer(own.tobytes(), np.uint8).astype(np.float32)
    table = np.zeros((group.size(), flat.size), np.float32)
    table[group.rank()] = flat
    summed = ops.AllReduce(ops.ReduceOp.SUM, group.name)(Tensor(table)).asnumpy()
    return np.frombuffer(summed.astype(np.uint8).tobytes(), own.dtype).reshape((group.size(), *own.shape))
