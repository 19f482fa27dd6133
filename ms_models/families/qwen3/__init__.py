"""Qwen3."""

from ms_models.families.qwen3.model import Qwen3ForCausalLM

__all__ = ["Qwen3ForCausalLM"]
