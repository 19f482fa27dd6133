"""Model families: one YAML file each, one `Family` object each. A family is added by adding a file."""

from mappings.families.family import Family, Parameter
from mappings.families.registry import families, family_for_config, load_family

__all__ = ["Family", "Parameter", "families", "family_for_config", "load_family"]
