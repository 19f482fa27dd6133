"""Model families: one YAML file each, one `Family` object each. A family is added by adding a file."""

from mappings.families.atoms import Atom, Parameter, Spelled
from mappings.families.family import Family
from mappings.families.registry import families, family_for_config, load_family

__all__ = ["Atom", "Family", "Parameter", "Spelled", "families", "family_for_config", "load_family"]
