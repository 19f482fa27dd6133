"""What each public torch name becomes in MindSpore, one file of rows per torch namespace."""

from mappings.api.row import Row
from mappings.api.table import ApiTable, Standing, known_names, load_table

__all__ = ["ApiTable", "Row", "Standing", "known_names", "load_table"]
