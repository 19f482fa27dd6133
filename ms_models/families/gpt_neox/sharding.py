"""How a GPT-NeoX is cut: as every decoder. query_key_value holds head after head, so a rank has a run of rows."""

from ms_models.families.sharding import Sharding as GPTNeoXSharding

__all__ = ["GPTNeoXSharding"]
