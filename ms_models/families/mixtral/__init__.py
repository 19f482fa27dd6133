"""Mixtral."""

from ms_models.families.mixtral.model import MixtralForCausalLM

__all__ = ["MixtralForCausalLM"]
