"""`flat`: a nested configuration as dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every leaf by its dotted name; tuples as lists, as they are once stored."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = list(value) if isinstance(value, tuple) else value
    return result
