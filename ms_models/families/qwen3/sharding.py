"""How a Qwen3 is cut: as a Llama. The norms of queries and keys are on every rank and serve its own heads."""

from ms_models.families.sharding import Sharding as Qwen3Sharding

__all__ = ["Qwen3Sharding"]
