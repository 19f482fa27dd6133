"""GLM-4 0414 (dense)."""

from ms_models.families.glm4.model import Glm4ForCausalLM

__all__ = ["Glm4ForCausalLM"]
