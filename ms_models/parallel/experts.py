"""Which experts an expert-parallel rank holds, and how tokens reach them and come back.

Each rank of the group has tokens of its own. All tokens, with their routing, are gathered; a rank computes what its
experts add to each; the contributions are summed and every rank keeps those of its own tokens. No token is ever
dropped, whatever the routing, and all shapes are known before it: a step compiles. Backward, the gradients of the
results are gathered, and what all ranks found for a rank's tokens and routing weights is summed on that rank.

An all-to-all would carry each token only to the ranks of its experts, k of them at most; but how many go where is known
only once they are routed, so that static shapes would need room for all tokens on every way: the traffic of the gather.
"""

from __future__ import annotations

from mindspore import Tensor, nn

from ms_models.parallel.collectives import GatherForSharded, ReduceScatterToGroup
from ms_models.parallel.mesh import Group


def experts_of_rank(experts: int, group: Group) -> range:
    """The consecutive experts that this rank of an expert-parallel group holds, of `experts` in all."""
    assert experts % group.size == 0, f"{experts} experts over {group.size} ranks"
    each = experts // group.size
    return range(group.index * each, (group.index + 1) * each)


class GatherTokens(nn.Cell):
    """The rows of all ranks, in group order, `[ranks * N, W]` for `[N, W]`. Every rank brings the same number."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.gather = GatherForSharded(group, 0)

    def construct(self, rows: Tensor) -> Tensor:
        return self.gather(rows)


class ReturnTokens(nn.Cell):
    """The sum over the ranks of what they found for this rank's rows, `[N, W]` for `[ranks * N, W]`."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.reduce_scatter = ReduceScatterToGroup(group, 0)

    def construct(self, rows: Tensor) -> Tensor:
        return self.reduce_scatter(rows)
