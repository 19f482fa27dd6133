"""How a Qwen2 is cut: as a Llama. Its q, k and v biases are cut with the heads they belong to."""

from ms_models.families.sharding import Sharding as Qwen2Sharding

__all__ = ["Qwen2Sharding"]
