"""Expert parallelism: which experts a rank holds, and how tokens reach them and come back.

Each rank of the group has tokens of its own, as many as the others. All tokens, with their routing, are gathered
(`GatherForSharded`); a rank computes what its experts add to each; the contributions are summed and every rank keeps
those of its own tokens (`ReduceScatterToGroup`). Backward, the gradients of the results are gathered, and what all
ranks found for a rank's tokens and routing weights is summed there. No token is ever dropped, whatever the routing, and
all shapes are known before it: a step compiles.

An all-to-all would carry each token to the ranks of its experts only; but how many go where is known only once they are
routed, so that static shapes need room for all tokens on every way: the traffic of the gather.
"""

from __future__ import annotations

from ms_models.parallel.mesh import Group


def experts_of_rank(experts: int, group: Group) -> range:
    """The consecutive experts that this rank of an expert-parallel group holds, of `experts` in all."""
    assert experts % group.size == 0, f"{experts} experts over {group.size} ranks"
    each = experts // group.size
    return range(group.index * each, (group.index + 1) * each)
