"""`AttentionCore`: attention between the projections, wherever keys and values are."""

from __future__ import annotations

from mindspore import Tensor, nn

from ms_models.layers.attention import grouped_attention
from ms_models.parallel.place import Place


class AttentionCore(nn.Cell):
    """`grouped_attention` with the scale and the cap of a layer.

    Args:
        place: of the rank.
        scale: of the scores; `1 / sqrt(D)` where not given.
        cap: soft cap of the scaled scores; None for none.
    """

    def __init__(self, place: Place, scale: float | None = None, cap: float | None = None) -> None:
        super().__init__(auto_prefix=False)
        assert place.mesh.layout.cp == 1
        self.scale_, self.cap = scale, cap

    def construct(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, bias: Tensor) -> Tensor:
        """`[B, S, H * D]`; see `grouped_attention`."""
        return grouped_attention(q_BSHD, k_BTKD, v_BTKD, bias, self.scale_, self.cap)
