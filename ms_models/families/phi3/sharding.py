"""How a Phi-3 is cut: as every decoder, through tensors that hold several projections.

A rank holds its own rows of each of them, in their order: those of its query heads, its key heads, its value heads; of
gate, of up.
"""

from __future__ import annotations

from mappings.errors import UserError
from ms_models.families.sharding import Sharding
from ms_models.parallel.fused_heads import FusedHeads
from ms_models.parallel.linear import ColumnParallelLinear


class Phi3Sharding(Sharding):
    """Makes each class of layer for one place."""

    def query_key_value(self, hidden: int, heads: int, kv_heads: int, width: int) -> FusedHeads:
        """q, k and v in one tensor; ranks hold copies of key/value heads where there are fewer of them.

        Raises:
            UserError: neither do the ranks divide the key/value heads, nor the heads the ranks.
        """
        size = self.group.size
        if kv_heads % size and size % kv_heads:
            raise UserError(f"layout: tp={size} neither divides the {kv_heads} key/value heads nor is a multiple")
        rows = [self.local(count) * width for count in (heads, kv_heads, kv_heads)]
        copies = self.place.mesh.block("tp", size // kv_heads) if size > kv_heads else None
        return FusedHeads(hidden, (rows[0], rows[1], rows[2]), copies)

    def gate_up(self, hidden: int, ffn: int) -> ColumnParallelLinear:
        """gate and up in one tensor: first the rows of gate, then as many of up."""
        return self.ffn_in(hidden, 2 * ffn)
