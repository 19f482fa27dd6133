"""What each public torch name becomes in MindSpore, one file of rows per torch namespace."""

from mappings.api.row import Row
from mappings.api.table import ApiTable, load_table

__all__ = ["ApiTable", "Row", "load_table"]
