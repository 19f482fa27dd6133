"""How a GLM-4 is cut: as every decoder; gate and up are one tensor, of which a rank holds its rows of each."""

from ms_models.families.phi3.sharding import Phi3Sharding as Glm4Sharding

__all__ = ["Glm4Sharding"]
