"""How a Gemma 2 is cut: as every decoder. Its norms are on every rank, before and behind the cut layers."""

from ms_models.families.sharding import Sharding as Gemma2Sharding

__all__ = ["Gemma2Sharding"]
