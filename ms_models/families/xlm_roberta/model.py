"""XLM-RoBERTa: a RoBERTa with a vocabulary of many languages."""

from __future__ import annotations

from ms_models.families.roberta.model import RobertaForMaskedLM
from ms_models.families.xlm_roberta.sharding import XLMRobertaSharding


class XLMRobertaForMaskedLM(RobertaForMaskedLM):
    """XLM-RoBERTa with its head of masked words; see `MaskedLM` for what it offers."""

    sharding = XLMRobertaSharding
