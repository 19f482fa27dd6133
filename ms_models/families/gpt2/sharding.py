"""How a GPT-2 is cut: its layers are `[in, out]`, so what a Llama cuts along rows is cut along columns here.

Queries, keys and values are one layer: a rank holds its heads' columns of each of the three, side by side.
"""

from __future__ import annotations

from ms_models.families.sharding import Sharding
from ms_models.parallel.conv1d import ColumnParallelConv1D, RowParallelConv1D


class GPT2Sharding(Sharding):
    """Makes each class of layer in the form this rank holds."""

    def attention_in(self, hidden: int, outputs: int, *, bias: bool = False) -> ColumnParallelConv1D:
        """Queries, keys and values in one layer."""
        return ColumnParallelConv1D(hidden, outputs, self.group, bias=bias)

    def ffn_in(self, hidden: int, ffn: int, *, bias: bool = False) -> ColumnParallelConv1D:
        """c_fc."""
        return ColumnParallelConv1D(hidden, ffn, self.group, bias=bias)

    def _row_parallel(self, inputs: int, outputs: int, bias: bool) -> RowParallelConv1D:
        return RowParallelConv1D(
            inputs, outputs, self.group, bias=bias, leave=self.leave(), shared_bias=self.is_sequence_parallel
        )
