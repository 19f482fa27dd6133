"""Gemma 2."""

from ms_models.families.gemma2.model import Gemma2ForCausalLM

__all__ = ["Gemma2ForCausalLM"]
