"""How a Llama is cut: as every decoder, see `ms_models/families/sharding.py`."""

from ms_models.families.sharding import Sharding as LlamaSharding

__all__ = ["LlamaSharding"]
