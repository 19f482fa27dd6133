"""How a Gemma 3 is cut: as every decoder. The norms of queries and keys are on every rank and serve its own heads."""

from __future__ import annotations

from ms_models.families.sharding import Sharding
from ms_models.layers.norm import OffsetRMSNorm


class Gemma3Sharding(Sharding):
    """Makes each class of layer for one place."""

    def head_norm(self, head_dim: int, eps: float) -> OffsetRMSNorm:
        """A norm over the width of each head, whose weight is stored as its distance from 1."""
        return OffsetRMSNorm(head_dim, eps, self.group)
