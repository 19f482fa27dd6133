"""The batch both sides see: padded on either side, unequal masks, some labels ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

IGNORED = -100
BATCH = 3
# Odd, so that it meets no other size of a model and a transposed axis cannot hide.
LENGTH = 41
SHORTEST = 4


def make_batch(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """A batch for the model of a `config.json`; the same for the same seed.

    Row 0 is full, row 1 padded on the right, row 2 on the left. A pad token, where the model names one, also stands
    among the real tokens: transformers gives its row no gradient there, and a port must do the same. Labels are the
    inputs, -100 under padding, at the first token after left padding (the position that predicts it sees nothing, and
    frameworks differ there) and at a few other places, so that rows have unequal numbers of valid positions.

    Returns:
        `input_ids`, `labels` `[3, S]` int64 and `attention_mask` `[3, S]` int64, S at most 41.
    """
    rng = np.random.default_rng(seed)
    limit = config.get("max_position_embeddings")
    length = max(SHORTEST, min(LENGTH, limit)) if type(limit) is int else LENGTH
    pad = config.get("pad_token_id")
    mask = np.ones((BATCH, length), np.int64)
    mask[1, length - length // 3 :] = 0
    mask[2, : length // 4] = 0
    ids = rng.integers(0, config["vocab_size"], (BATCH, length), dtype=np.int64)
    if type(pad) is int and 0 <= pad < config["vocab_size"]:
        ids[mask == 0] = ids[0, 1] = pad
    labels = ids.copy()
    labels[rng.random((BATCH, length)) < 0.1] = IGNORED
    labels[mask == 0] = IGNORED
    labels[2, length // 4] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def valid_labels(labels: np.ndarray) -> int:
    """Number of positions that enter the loss: labels are shifted by one inside the model."""
    return int((labels[:, 1:] != IGNORED).sum())
