"""How a BERT is cut: the base class's rules, and these.

| class | layers | cut |
|---|---|---|
| embedding | position_embeddings, token_type_embeddings | on every rank |
| lm_head | transform, pooler, next sentence | on every rank |
| lm_head | decoder and its bias | vocabulary rows: each rank makes some of the logits |

The same facts stand per parameter in the family files (`cut`); a model checks that both agree.
"""

from __future__ import annotations

from mindspore import Tensor, ops

from mappings.errors import UserError
from ms_models.families.sharding import SEQUENCE, Sharding
from ms_models.layers.dropout import Dropout
from ms_models.parallel.place import Place


class BertSharding(Sharding):
    """Makes each class of layer for one place.

    Raises:
        UserError: a layout that encoders are not built for.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        layout = place.mesh.layout
        if layout.pp > 1 or layout.cp > 1:
            raise UserError(f"layout: {layout}: encoders are cut over tp and replicated over dp, nothing else")
        if layout.zero == 3:
            raise UserError("layout: zero=3 is not supported for encoders; take zero=2")
        if place.options.recompute != "none":
            raise UserError(f"layout: recompute {place.options.recompute!r} is not supported for encoders, only 'none'")

    def dropout(self, rate: float, site: int) -> Dropout:
        """Of the residual stream, which every rank has whole or a part of."""
        return Dropout(rate, site, self.group.index if self.is_sequence_parallel else 0)

    def head_dropout(self, rate: float, site: int) -> Dropout:
        """Of the attention weights of this rank's heads."""
        return Dropout(rate, site, self.group.index)

    def own(self, x: Tensor) -> Tensor:
        """This rank's part of the sequence, of `[B, S]`."""
        if not self.is_sequence_parallel:
            return x
        return ops.split(x, x.shape[SEQUENCE] // self.group.size, SEQUENCE)[self.group.index]
