"""BERT, and the Chinese RoBERTa checkpoints that are BERTs."""

from ms_models.families.bert.model import BertForMaskedLM

__all__ = ["BertForMaskedLM"]
