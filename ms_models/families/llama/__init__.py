"""Llama 2 and 3."""

from ms_models.families.llama.model import LlamaForCausalLM

__all__ = ["LlamaForCausalLM"]
