"""Tables that every rank holds whole: learned positions, token types."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.mesh import Group


class SharedTable(nn.Cell):
    """Rows by index.

    Args:
        rows: of the table.
        width: length of a row.
        shared_by: ranks each of which keeps its part of the sequence only; the gradient is summed over them. None where
            every rank keeps all.
        compute: number format of what is looked up; None for that of the table.
    """

    def __init__(self, rows: int, width: int, shared_by: Group | None = None, compute: Any = None) -> None:
        super().__init__()
        self.weight = Parameter(ops.zeros((rows, width), ms.float32), name="weight")
        self.group = shared_by if shared_by is not None and shared_by.size > 1 else None
        self.compute = compute
        self.enter: Any = None if self.group is None else CopyToGroup(self.group)

    def construct(self, indices: Tensor) -> Tensor:
        """Rows `[B, S, width]` of `indices` `[B, S]`; of a divided sequence, this rank's part of S."""
        if self.group is None:
            rows = ops.gather(self.weight, indices, 0)
        else:
            own = ops.split(indices, indices.shape[1] // self.group.size, 1)[self.group.index]
            rows = ops.gather(self.enter(self.weight), own, 0)
        return rows if self.compute is None else rows.astype(self.compute)
