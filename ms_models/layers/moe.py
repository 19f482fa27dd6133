"""Mixture of experts: stacked experts cut over expert- and tensor-parallel ranks, and a router before them.

Suffixes: B batch, S positions, M model width, F this rank's part of an expert's width, k experts per token, T tokens of
all expert-parallel ranks, E experts of this rank.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_models.layers.moe_blocks import BlockLayout, BlockLinear, Collect, Spread
from ms_models.parallel.collectives import GatherForSharded, ReduceScatterToGroup
from ms_models.parallel.experts import experts_of_rank
from ms_models.parallel.mesh import Group


class Experts(nn.Cell):
    """Gated feed-forward experts: `sum over the chosen of weight * down(silu(gate(x)) * up(x))`. Drops no token.

    Parameters are those of transformers 5 in memory: `gate_up_proj` `[E, 2F, M]`, first the rows of the gate, then of
    up, and `down_proj` `[E, M, F]`. Expert-parallel ranks hold consecutive experts and have tokens of their own, as
    many each; tensor-parallel ranks hold some of F of every expert, gate and up each cut.

    Args:
        count: experts over all ranks.
        hidden: model width.
        ffn: full width of an expert.
        tp: ranks that F is cut over.
        ep: ranks that the experts are cut over.
        enter: what a tensor passes between the residual stream and column-parallel layers.
        leave: what a partial result passes on its way back: the sum over `tp`.
    """

    def __init__(
        self, count: int, hidden: int, ffn: int, *, tp: Group, ep: Group, enter: nn.Cell, leave: nn.Cell
    ) -> None:
        super().__init__()
        assert ffn % tp.size == 0, f"expert width {ffn} over {tp.size} ranks"
        held = experts_of_rank(count, ep)
        self.ffn = ffn // tp.size
        self.gate_up_proj = Parameter(ops.zeros((len(held), 2 * self.ffn, hidden), ms.float32), name="gate_up_proj")
        self.down_proj = Parameter(ops.zeros((len(held), hidden, self.ffn), ms.float32), name="down_proj")
        self.enter, self.leave = enter, leave
        self.gather, self.give_back = GatherForSharded(ep, 0), ReduceScatterToGroup(ep, 0)
        self.layout = BlockLayout(len(held), held.start)
        self.spread, self.collect, self.linear = Spread(), Collect(), BlockLinear()

    def construct(self, x_BSM: Tensor, weights_BSk: Tensor, chosen_BSk: Tensor) -> Tensor:
        """What the chosen experts return, weighted and summed, `[B, S, M]`.

        Args:
            x_BSM: hidden states.
            weights_BSk: fp32, see `moe_router`.
            chosen_BSk: int32.
        """
        chosen = chosen_BSk.shape[-1]
        # The weights enter beside the tokens: each rank finds only a part of their gradient. So that one collective
        # takes both, the indices travel as fp32, exact up to 2**24 experts.
        routing = ops.concat((weights_BSk, ops.stop_gradient(chosen_BSk.astype(ms.float32))), -1)
        x_BSM, routing = self.enter(x_BSM), self.enter(routing)
        batch, length, hidden = x_BSM.shape
        x_TM = self.gather(x_BSM.reshape(-1, hidden))
        routing_T2k = self.gather(routing.reshape(-1, 2 * chosen))
        y_TM = self.compute(x_TM, routing_T2k[:, :chosen], ops.stop_gradient(routing_T2k[:, chosen:]).astype(ms.int32))
        return self.leave(self.give_back(y_TM).reshape(batch, length, hidden))

    def compute(self, x_TM: Tensor, weights_Tk: Tensor, chosen_Tk: Tensor) -> Tensor:
        """What this rank's part of its experts adds to each token, `[T, M]`."""
        row, here, source, filled, owner = self.layout(chosen_Tk)
        x_NBM = self.spread(x_TM, row, here, source).reshape(owner.shape[0], -1, x_TM.shape[-1])
        gate, up = ops.split(self.linear(x_NBM, self.gate_up_proj, owner), self.ffn, -1)
        y_NBM = self.linear(ops.silu(gate) * up, self.down_proj, owner)
        return self.collect(y_NBM.reshape(-1, x_TM.shape[-1]), weights_Tk, row, here, source, filled)


class MoE(nn.Cell):
    """A router and its experts, in the place of a dense feed-forward layer.

    Args:
        gate: see `moe_router`.
        experts: see `Experts`.
    """

    def __init__(self, gate: nn.Cell, experts: Experts) -> None:
        super().__init__()
        self.gate = gate
        self.experts = experts

    def construct(self, x_BSM: Tensor) -> Tensor:
        weights, chosen = self.gate(x_BSM)
        return self.experts(x_BSM, weights, chosen)
