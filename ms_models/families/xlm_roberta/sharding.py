"""How an XLM-RoBERTa is cut: as a BERT."""

from ms_models.families.bert.sharding import BertSharding as XLMRobertaSharding

__all__ = ["XLMRobertaSharding"]
