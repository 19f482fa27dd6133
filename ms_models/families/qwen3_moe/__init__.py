"""Qwen3-MoE."""

from ms_models.families.qwen3_moe.model import Qwen3MoeForCausalLM

__all__ = ["Qwen3MoeForCausalLM"]
