"""XLM-RoBERTa."""

from ms_models.families.xlm_roberta.model import XLMRobertaForMaskedLM

__all__ = ["XLMRobertaForMaskedLM"]
