"""How a Phi-3 is cut: as every decoder, through tensors that hold several projections.

A rank holds its own rows of each of them, in their order: those of its query heads, its key heads, its value heads; of
gate, of up. A tp that does not divide the key/value heads is refused with the layout (`mappings/holdings.py`).
"""

from __future__ import annotations

from ms_models.families.sharding import Sharding
from ms_models.parallel.linear import ColumnParallelLinear


class Phi3Sharding(Sharding):
    """Makes each class of layer for one place."""

    def query_key_value(self, hidden: int, heads: int, kv_heads: int, width: int) -> ColumnParallelLinear:
        """q, k and v in one tensor."""
        return self.attention_in(hidden, (heads + 2 * kv_heads) * width)

    def gate_up(self, hidden: int, ffn: int) -> ColumnParallelLinear:
        """gate and up in one tensor."""
        return self.ffn_in(hidden, 2 * ffn)
