"""Phi-3, Phi-3.5 and Phi-4 (dense)."""

from ms_models.families.phi3.model import Phi3ForCausalLM

__all__ = ["Phi3ForCausalLM"]
