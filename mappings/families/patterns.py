"""Names with indices: `{layer}`, `{mtp}` and `{expert}` stand for a decimal number without leading zeros."""

from __future__ import annotations

import re
from functools import cache

LAYER = "{layer}"
MTP = "{mtp}"
"""Index among the layers behind the decoder layers, which predict further tokens."""
EXPERT = "{expert}"
INDEX = "(?:0|[1-9][0-9]*)"


def has_layer(template: str) -> bool:
    """Whether a name belongs to a layer."""
    return LAYER in template or MTP in template


def concrete(template: str, layer: int | None, expert: int | None = None) -> str:
    """The name for a layer and an expert; None leaves the index as it is."""
    name = template if layer is None else template.replace(LAYER, str(layer))
    return name if expert is None else name.replace(EXPERT, str(expert))


def pattern_matches(pattern: str, name: str) -> bool:
    """Whether a whole name fits a pattern."""
    return _compiled(pattern).fullmatch(name) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"\{layer\}|\{mtp\}|\{expert\}", pattern)
    return re.compile(INDEX.join(re.escape(part) for part in parts))
