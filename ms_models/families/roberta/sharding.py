"""How a RoBERTa is cut: as a BERT."""

from ms_models.families.bert.sharding import BertSharding as RobertaSharding

__all__ = ["RobertaSharding"]
