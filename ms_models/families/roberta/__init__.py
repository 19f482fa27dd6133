"""RoBERTa."""

from ms_models.families.roberta.model import RobertaForMaskedLM

__all__ = ["RobertaForMaskedLM"]
