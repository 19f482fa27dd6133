"""Collectives as functions that return a new tensor."""

from __future__ import annotations

from functools import cache
from typing import Any

from mindspore import Tensor, nn

from .device_mesh import DeviceMesh
from .distributed import ProcessGroup, ReduceOp, new_group, reduced
from .group_functions import sum_over_ranks


def all_reduce(self: Tensor, reduceOp: str, group: Any, tag: str = "") -> Tensor:
    """`self` of every rank combined; a sum has a gradient, the sum of the ranks' gradients.

    Args:
        self: any shape.
        reduceOp: sum, avg, product, min or max.
        group: process group, ranks, mesh of one axis, or mesh and axis.
        tag: of no meaning.

    Raises:
        ValueError: another operation, or a group that this rank is not in.
        RuntimeError: from the gradient of anything but a sum.
    """
    used, op = _group(group), ReduceOp(reduceOp.lower())
    if op is ReduceOp.SUM:
        return sum_over_ranks(self, used) if used.size() > 1 else self * 1
    return _without_gradient(op, used)(self)


class _Reduction(nn.Cell):
    def __init__(self, op: ReduceOp, group: ProcessGroup) -> None:
        super().__init__(auto_prefix=False)
        self.op, self.group = op, group

    def construct(self, x: Tensor) -> Tensor:
        return reduced(x, self.op, self.group)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        raise RuntimeError(f"all_reduce backward only supports 'sum' reduction, got '{self.op.value}'")


_without_gradient = cache(_Reduction)
_group_of = cache(new_group)


def _group(given: Any) -> ProcessGroup:
    if isinstance(given, DeviceMesh):
        return given.get_group()
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], DeviceMesh):
        return given[0].get_group(given[1])
    found = given if isinstance(given, ProcessGroup) else _group_of(tuple(given))
    if found is None:
        raise ValueError(f"this rank is not part of the group {given}")
    return found
