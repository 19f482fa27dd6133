"""Mistral."""

from ms_models.families.mistral.model import MistralForCausalLM

__all__ = ["MistralForCausalLM"]
