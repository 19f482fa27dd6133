"""How a Mixtral is cut: as every decoder, see `ms_models/families/sharding.py`; its experts as in `SparseMLP`."""

from ms_models.families.sharding import Sharding as MixtralSharding

__all__ = ["MixtralSharding"]
