"""Gemma 3, text models."""

from ms_models.families.gemma3_text.model import Gemma3ForCausalLM

__all__ = ["Gemma3ForCausalLM"]
