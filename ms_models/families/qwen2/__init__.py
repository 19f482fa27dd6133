"""Qwen2 and Qwen2.5 (dense)."""

from ms_models.families.qwen2.model import Qwen2ForCausalLM

__all__ = ["Qwen2ForCausalLM"]
