"""GPT-2."""

from ms_models.families.gpt2.model import GPT2LMHeadModel

__all__ = ["GPT2LMHeadModel"]
