"""DeepSeek-V3, DeepSeek-R1 and Kimi-K2."""

from ms_models.families.deepseek_v3.model import DeepseekV3ForCausalLM

__all__ = ["DeepseekV3ForCausalLM"]
