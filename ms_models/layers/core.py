"""`AttentionCore`: attention between the projections, wherever keys and values are."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn

from ms_models.layers.attention import grouped_attention
from ms_models.layers.context_attention import context_attention
from ms_models.parallel.place import Place


class AttentionCore(nn.Cell):
    """`grouped_attention` with the scale and the cap of a layer, over all context-parallel ranks.

    Args:
        place: of the rank.
        scale: of the scores; `1 / sqrt(D)` where not given.
        cap: soft cap of the scaled scores; None for none.
    """

    def __init__(self, place: Place, scale: float | None = None, cap: float | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.scale_, self.cap = scale, cap
        is_divided = place.context.group.size > 1
        self.across: Any = context_attention(place.context, scale, cap) if is_divided else None

    def construct(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKE: Tensor, bias: Tensor) -> Tensor:
        """`[B, S, H * E]`; see `grouped_attention`. The bias is of this rank's queries and the keys of all ranks."""
        if self.across is not None:
            return self.across(q_BSHD, k_BTKD, v_BTKE, bias)
        return grouped_attention(q_BSHD, k_BTKD, v_BTKE, bias, self.scale_, self.cap)
