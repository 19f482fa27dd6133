"""How a Qwen3-MoE is cut: as every decoder, see `ms_models/families/sharding.py`; its experts as in `SparseMLP`."""

from ms_models.families.sharding import Sharding as Qwen3MoeSharding

__all__ = ["Qwen3MoeSharding"]
