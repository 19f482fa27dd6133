"""What ranks pass to each collective, and what numpy says they get from it: results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from ms_models.parallel import collectives as c
from ms_models.parallel.mesh import Group

Arrays = list[np.ndarray]
SHAPE = (4, 8)


def inputs(size: int) -> dict[str, Arrays]:
    """Per dtype what each rank passes. Sums are exact in any order.

    No subnormals: under ms.jit MindSpore's CPU arithmetic flushes them to zero, collectives or not.
    """
    rng = np.random.default_rng(0)
    floats = [rng.integers(-60, 60, SHAPE).astype(np.float32) / 8 for _ in range(size)]
    for rank, array in enumerate(floats):
        array[0, :4] = [0.0, -0.0, 1.5, -0.0] if rank == 0 else [-0.0, -0.0, -1.5, -0.0]
    floats[1][1, 0] = np.inf
    data = {"fp32": floats, "fp16": [array.astype(np.float16) for array in floats], "bf16": floats}
    for kind in (np.int32, np.int64):
        limits = np.iinfo(kind)
        whole = [rng.integers(limits.min, limits.max, SHAPE, kind, endpoint=True) for _ in range(size)]
        for rank, array in enumerate(whole):
            array[0, :3] = [limits.max, limits.min, -1] if rank == 0 else [limits.max, limits.min, 1]
        data[kind.__name__] = whole
    return data


def slices(array: np.ndarray, size: int, axis: int) -> Arrays:
    return np.split(array, size, axis)


def total(arrays: Arrays) -> np.ndarray:
    """The sum without a start value: zeros of both signs stay what they are."""
    result = arrays[0]
    for array in arrays[1:]:
        result = result + array
    return result


def exchanged(arrays: Arrays, me: int, split: int, concat: int) -> np.ndarray:
    return np.concatenate([slices(array, len(arrays), split)[me] for array in arrays], concat)


Cell = Callable[[Tensor], Tensor]
Case = tuple[Cell, Callable[[Arrays, int], np.ndarray]]


def forward_cases(group: Group, native: bool | None = None) -> dict[str, Case]:
    """Name -> Cell, and what rank `me` gets from it."""
    size = group.size
    last = size - 1

    def cell(kind: type[nn.Cell], *arguments: Any) -> Cell:
        return kind(group, *arguments, native=native)

    return {
        "all_reduce": (cell(c.AllReduce), lambda xs, me: total(xs)),
        "gather rows": (cell(c.GatherFromGroup, 0), lambda xs, me: np.concatenate(xs, 0)),
        "gather columns": (cell(c.GatherFromGroup, 1), lambda xs, me: np.concatenate(xs, 1)),
        "gather for sharded": (cell(c.GatherForSharded, 1), lambda xs, me: np.concatenate(xs, 1)),
        "reduce_scatter rows": (cell(c.ReduceScatterToGroup, 0), lambda xs, me: slices(total(xs), size, 0)[me]),
        "reduce_scatter columns": (cell(c.ReduceScatterToGroup, 1), lambda xs, me: slices(total(xs), size, 1)[me]),
        "all_to_all 0 1": (cell(c.AllToAll, 0, 1), lambda xs, me: exchanged(xs, me, 0, 1)),
        "all_to_all 1 0": (cell(c.AllToAll, 1, 0), lambda xs, me: exchanged(xs, me, 1, 0)),
        "all_to_all 1 1": (cell(c.AllToAll, 1, 1), lambda xs, me: exchanged(xs, me, 1, 1)),
        "shift 1": (cell(c.Shift, 1), lambda xs, me: xs[me - 1]),
        "shift back": (cell(c.Shift, -1), lambda xs, me: xs[(me + 1) % size]),
        "shift around": (cell(c.Shift, size + 1), lambda xs, me: xs[me - 1]),
        "shift whole turn": (cell(c.Shift, size), lambda xs, me: xs[me]),
        "broadcast": (cell(c.Broadcast, 1), lambda xs, me: xs[1]),
        "transfer": (cell(c.Transfer, last, 0), lambda xs, me: xs[last] if me == 0 else xs[me]),
    }


def gradient_cases(group: Group) -> dict[str, Case]:
    """Name -> collective as a function, and its gradient on rank `me` from the weights `ws` of all ranks' losses."""
    size = group.size

    def through_all_reduce(x: Tensor) -> Tensor:
        return c.all_reduce(x, group)

    def through_copy(x: Tensor) -> Tensor:
        return c.copy_to_group(x, group)

    def through_reduce(x: Tensor) -> Tensor:
        return c.reduce_from_group(x, group)

    def through_gather(x: Tensor) -> Tensor:
        return c.gather_from_group(x, group, 1)

    def through_sharded(x: Tensor) -> Tensor:
        return c.gather_for_sharded(x, group, 1)

    def through_scatter(x: Tensor) -> Tensor:
        return c.reduce_scatter_to_group(x, group, 1)

    def through_all_to_all(x: Tensor) -> Tensor:
        return c.all_to_all(x, group, 1, 0)

    def through_shift(x: Tensor) -> Tensor:
        return c.shift(x, group, 1)

    def through_broadcast(x: Tensor) -> Tensor:
        return c.broadcast(x, group, 0)

    def through_transfer(x: Tensor) -> Tensor:
        return c.transfer(x, group, 0, size - 1)

    def nothing(ws: Arrays, me: int) -> np.ndarray:
        return np.zeros(SHAPE, np.float32)

    return {
        "all_reduce": (through_all_reduce, lambda ws, me: total(ws)),
        "copy": (through_copy, lambda ws, me: total(ws)),
        "reduce": (through_reduce, lambda ws, me: ws[me]),
        "gather": (through_gather, lambda ws, me: slices(ws[me], size, 1)[me]),
        "gather for sharded": (through_sharded, lambda ws, me: slices(total(ws), size, 1)[me]),
        "reduce_scatter": (through_scatter, lambda ws, me: np.concatenate(ws, 1)),
        # Element (i, j) of rank me's block for rank r is element (i + me * rows, j) of what r holds.
        "all_to_all": (through_all_to_all, lambda ws, me: np.concatenate([slices(w, size, 0)[me] for w in ws], 1)),
        "shift": (through_shift, lambda ws, me: ws[(me + 1) % size]),
        "broadcast": (through_broadcast, nothing),
        "transfer": (through_transfer, nothing),
    }


def shapes(size: int) -> dict[str, tuple[int, int]]:
    """What a collective makes of SHAPE, where it makes something else."""
    return {
        "gather": (4, 8 * size),
        "gather for sharded": (4, 8 * size),
        "reduce_scatter": (4, 8 // size),
        "all_to_all": (4 * size, 8 // size),
    }


def per_rank(shape: tuple[int, ...], size: int) -> Arrays:
    return [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * (1 + rank) for rank in range(size)]
