"""For how many tokens a model has positions, from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("max_position_embeddings", "n_positions")
COUNTED_FROM_PADDING = ("roberta", "xlm-roberta")
"""Model types whose first position is `pad_token_id + 1` (transformers' `create_position_ids_from_input_ids`)."""


def first_position(config: Mapping[str, Any]) -> int:
    """Position of the first token, below which a table has rows that no token uses."""
    if config.get("model_type") not in COUNTED_FROM_PADDING:
        return 0
    pad = config.get("pad_token_id", 1)
    return 1 + (pad if type(pad) is int else 1)


def longest_sequence(config: Mapping[str, Any]) -> tuple[int, str] | None:
    """Tokens of the longest sequence, padding included, and the field that says so; None where none does."""
    for field in FIELDS:
        limit = config.get(field)
        if type(limit) is int:
            return limit - first_position(config), field
    return None
