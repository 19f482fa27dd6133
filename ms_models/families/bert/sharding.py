"""How a BERT is cut: the base class's rules, and these.

| class | layers | cut |
|---|---|---|
| embedding | position_embeddings, token_type_embeddings | on every rank |
| lm_head | transform, pooler, next sentence | on every rank |
| lm_head | decoder and its bias | vocabulary rows: each rank makes some of the logits |

The same facts stand per parameter in the family files (`cut`); a model checks that both agree.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mappings.errors import UserError
from ms_models.families.sharding import Sharding
from ms_models.layers.layer_norm import LayerNorm
from ms_models.parallel.place import Place


class Table(nn.Cell):
    """Rows by number, the whole table on every rank."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = Parameter(ops.zeros((rows, width), ms.float32), name="weight")

    def construct(self, ids: Tensor) -> Tensor:
        return ops.gather(self.weight, ids, 0)


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
        if self.is_sequence_parallel:
            raise UserError("layout: sequence_parallel is not supported for encoders; switch it off")

    def first(self, heads: int) -> int:
        """Index, in the whole model, of the first of this rank's heads, of `heads` in all."""
        return self.group.index * self.local(heads)

    def position_table(self, rows: int, width: int) -> Table:
        """Positions, or kinds of segments."""
        return Table(rows, width)

    def layer_norm(self, width: int, eps: float) -> LayerNorm:
        """Any of the norms."""
        return LayerNorm(width, eps)
