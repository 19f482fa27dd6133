"""GPT-NeoX, Pythia."""

from ms_models.families.gpt_neox.model import GPTNeoXForCausalLM

__all__ = ["GPTNeoXForCausalLM"]
