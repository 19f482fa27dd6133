"""Which experts an expert-parallel rank holds, and how tokens reach them and come back.

Each rank of the group has tokens of its own. All tokens, with their routing, are gathered; a rank computes what its
experts add to each; the contributions are summed and every rank keeps those of its own tokens. No token is ever
dropped, whatever the routing, and all shapes are known before it: a step compiles.
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from ms_models.parallel.collectives import AllReduce
from ms_models.parallel.mesh import Group


def experts_of_rank(experts: int, group: Group) -> range:
    """The consecutive experts that this rank of an expert-parallel group holds, of `experts` in all."""
    assert experts % group.size == 0, f"{experts} experts over {group.size} ranks"
    each = experts // group.size
    return range(group.index * each, (group.index + 1) * each)


class GatherTokens(nn.Cell):
    """The rows of all ranks, in group order; backward, what all ranks found for this rank's rows is summed.

    Every rank must bring the same number of rows.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.size, self.index = group.size, group.index
        self.all_reduce = AllReduce(group)

    def construct(self, rows: Tensor) -> Tensor:
        """`[ranks * N, W]` for `[N, W]`."""
        if self.size == 1:
            return rows
        filler = ops.full(rows.shape, -0.0, dtype=rows.dtype)  # adds nothing, not even to a zero's sign
        return self.all_reduce(ops.concat([rows if rank == self.index else filler for rank in range(self.size)], 0))


class ReturnTokens(nn.Cell):
    """Sums rows over the ranks and keeps this rank's own; backward, the gradients of all rows are gathered."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.size, self.index = group.size, group.index
        self.all_reduce = AllReduce(group)

    def construct(self, rows: Tensor) -> Tensor:
        """`[N, W]` for `[ranks * N, W]`."""
        if self.size == 1:
            return rows
        count = rows.shape[0] // self.size
        return self.all_reduce(rows)[self.index * count : (self.index + 1) * count]
