"""`Sharding`: makes every layer in the form that a rank holds. `model.py` of a family asks here for its layers.

| class | layers | cut over the tensor-parallel ranks |
|---|---|---|
| embedding | token embedding | vocabulary rows; results summed |
| attention | into heads (q, k, v) | column parallel: whole heads per rank |
| attention | out of heads (o) | row parallel: results summed |
| ffn | in (gate, up) | column parallel |
| ffn | out (down) | row parallel: results summed |
| lm_head | lm_head | vocabulary rows: each rank makes some of the logits |
| norm | all | on every rank |

The same facts stand per parameter in `mappings/families` (`cut`); a model checks that both agree. With sequence
parallelism, what is "summed" above leaves each rank its part of the sequence, and what every rank holds (norms,
routers, biases behind a sum) sees that part only, so its gradient is summed. A family with another rule overrides a
method.
"""

from __future__ import annotations

from mindspore import nn

from mappings.errors import UserError
from ms_models.layers.core import AttentionCore
from ms_models.layers.layer_norm import LayerNorm
from ms_models.layers.norm import OffsetRMSNorm, RMSNorm
from ms_models.parallel import collectives
from ms_models.parallel.collectives import CopyToGroup, ReduceFromGroup
from ms_models.parallel.linear import ColumnParallelLinear, Linear, RowParallelLinear, SharedLinear
from ms_models.parallel.mesh import Group
from ms_models.parallel.place import Place
from ms_models.parallel.tables import SharedTable
from ms_models.parallel.vocabulary import VocabParallelEmbedding

SEQUENCE = 1  # axis of the residual stream


class Sharding:
    """Makes each class of layer for one place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.group: Group = place.mesh.group("tp")
        self.is_sequence_parallel = place.options.sequence_parallel and self.group.size > 1
        self.shared_by = self.group if self.is_sequence_parallel else None
        """The ranks among which what lies between the cut layers is divided, if it is."""

    def local(self, heads: int) -> int:
        """Heads per rank, of `heads` in all; one where several ranks hold copies of it."""
        return max(1, heads // self.group.size)

    # Attention

    def enter(self) -> nn.Cell:
        """What the residual stream passes once before column-parallel layers."""
        return (
            collectives.GatherForSharded(self.group, SEQUENCE) if self.is_sequence_parallel else CopyToGroup(self.group)
        )

    def leave(self) -> nn.Cell:
        """What partial results pass on their way back into the residual stream."""
        return (
            collectives.ReduceScatterToGroup(self.group, SEQUENCE)
            if self.is_sequence_parallel
            else ReduceFromGroup(self.group)
        )

    def attention_in(self, hidden: int, outputs: int, *, bias: bool = False) -> ColumnParallelLinear:
        """q, or another projection into heads that are cut over the ranks."""
        return ColumnParallelLinear(hidden, outputs, self.group, bias=bias)

    def key_value_in(self, hidden: int, heads: int, width: int, *, bias: bool = False) -> Linear:
        """k or v: `heads` heads, each shared by several query heads; ranks hold copies where there are fewer heads.

        Raises:
            UserError: neither do the ranks divide the heads, nor the heads the ranks.
        """
        if heads >= self.group.size:
            return ColumnParallelLinear(hidden, heads * width, self.group, bias=bias)
        if self.group.size % heads:
            raise UserError(f"layout: tp={self.group.size} is no multiple of the {heads} key/value heads")
        return SharedLinear(hidden, width, self.place.mesh.block("tp", self.group.size // heads), bias=bias)

    def attention_out(self, inputs: int, hidden: int, *, bias: bool = False) -> RowParallelLinear:
        """The output projection."""
        return self._row_parallel(inputs, hidden, bias)

    def head_norm(self, head_dim: int, eps: float) -> RMSNorm:
        """A norm over the width of each head, with one weight for the heads of all ranks."""
        return RMSNorm(head_dim, eps, self.group)

    def core(self, scale: float | None = None, cap: float | None = None) -> AttentionCore:
        """Attention itself, between the projections; see `AttentionCore`."""
        return AttentionCore(self.place, scale, cap)

    # Feed-forward

    def ffn_in(self, hidden: int, ffn: int, *, bias: bool = False) -> ColumnParallelLinear:
        """gate or up."""
        return ColumnParallelLinear(hidden, ffn, self.group, bias=bias)

    def ffn_out(self, ffn: int, hidden: int, *, bias: bool = False) -> RowParallelLinear:
        """down."""
        return self._row_parallel(ffn, hidden, bias)

    # Both ends of the model

    def embedding(
        self, hidden: int, padding_id: int | None = None, scale: float | None = None
    ) -> VocabParallelEmbedding:
        """Token embedding, times `scale`; the row of `padding_id` learns nothing from lookups."""
        return VocabParallelEmbedding(
            self.place.vocab_rows, hidden, self.group, padding_id, scale, self.leave(), self.place.compute_dtype
        )

    def lm_head(self, hidden: int, *, bias: bool = False) -> ColumnParallelLinear:
        """Makes the logits of this rank's vocabulary rows."""
        return ColumnParallelLinear(hidden, self.place.vocab_rows * self.group.size, self.group, bias=bias)

    # What every rank holds

    def norm(self, width: int, eps: float) -> RMSNorm:
        """A norm of the residual stream."""
        return RMSNorm(width, eps, self.shared_by)

    def offset_norm(self, width: int, eps: float) -> OffsetRMSNorm:
        """The same with a weight that is stored as its distance from 1."""
        return OffsetRMSNorm(width, eps, self.shared_by)

    def layer_norm(self, width: int, eps: float) -> LayerNorm:
        """A layer norm of the residual stream."""
        return LayerNorm(width, eps, self.shared_by)

    def position_table(self, rows: int, width: int) -> SharedTable:
        """Rows by position, on every rank; what is looked up belongs to the residual stream."""
        return SharedTable(rows, width, self.shared_by, self.place.compute_dtype)

    def replicated(self, inputs: int, outputs: int, *, bias: bool = False) -> Linear:
        """A linear layer on the residual stream that every rank holds whole, such as a router."""
        if self.shared_by is not None:
            return SharedLinear(inputs, outputs, self.shared_by, bias=bias)
        return Linear(inputs, outputs, bias=bias)

    def _row_parallel(self, inputs: int, outputs: int, bias: bool) -> RowParallelLinear:
        return RowParallelLinear(
            inputs, outputs, self.group, bias=bias, leave=self.leave(), shared_bias=self.is_sequence_parallel
        )
