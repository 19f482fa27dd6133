"""Queries, keys and values from one weight, cut over the ranks of a group by whole heads."""

from __future__ import annotations

from mindspore import Tensor, ops

from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.linear import Linear
from ms_models.parallel.mesh import Group


class FusedHeads(Linear):
    """Each rank holds the rows of its query heads, then of its key heads, then of its value heads.

    Args:
        inputs: width of the input.
        rows: rows of this rank: of queries, of keys, of values.
        copies: the ranks that hold the same key and value heads, where there are more ranks than such heads: each sees
            the gradients of its own query heads only, so those of keys and values are summed.
    """

    def __init__(self, inputs: int, rows: tuple[int, int, int], copies: Group | None = None) -> None:
        super().__init__(inputs, sum(rows))
        self.rows = rows
        self.enter = CopyToGroup(copies) if copies is not None and copies.size > 1 else None

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of this rank, `[..., rows]` each."""
        weight = self.weight
        if self.enter is not None:
            queries, shared = ops.split(weight, [self.rows[0], self.rows[1] + self.rows[2]], 0)
            weight = ops.concat((queries, self.enter(shared)), 0)
        q, k, v = ops.split(ops.dense(x, weight), list(self.rows), -1)
        return q, k, v
