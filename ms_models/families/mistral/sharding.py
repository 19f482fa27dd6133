"""How a Mistral is cut: as a Llama. A sliding window changes nothing in it."""

from ms_models.families.sharding import Sharding as MistralSharding

__all__ = ["MistralSharding"]
