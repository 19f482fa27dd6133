"""Rows of a fixed length as one int32 array `[R, 3, S]`: input ids, attention mask, labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

FIELDS = ("input_ids", "attention_mask", "labels")
IGNORED = -100
"""Label of a position that has no target; Hugging Face's value."""
BYTES_PER_TOKEN = 4 * len(FIELDS)


def rows_of(
    tokens: np.ndarray, starts: np.ndarray, kept: np.ndarray, pad: int, *, isolate: bool, boundary_loss: bool
) -> np.ndarray:
    """Rows from tokens and where documents begin.

    Labels stand at the position of their token, as Hugging Face has them; the model shifts.

    Args:
        tokens: `[R, S]`.
        starts: `[R, S]` bool, true at the first token of a document (of a piece of one, where it was divided).
        kept: `[R, S]` bool, false at padding, which is at the end of a row.
        pad: what stands at padding.
        isolate: number the documents of a row 1, 2, 3 ... in the attention mask instead of all 1.
        boundary_loss: whether the first token of a document that follows another one has a label. With `isolate` it
            has none, because it would be learned from the end of a document that has nothing to do with it.
    """
    rows = np.empty((len(tokens), len(FIELDS), tokens.shape[1]), np.int32)
    follows = starts.copy()
    follows[:, :1] = False
    rows[:, 0] = np.where(kept, tokens, pad)
    rows[:, 1] = kept * (1 + np.cumsum(follows, axis=1)) if isolate else kept
    ignored = ~kept if boundary_loss and not isolate else ~kept | follows
    rows[:, 2] = np.where(ignored, IGNORED, tokens)
    return rows


def stacked(rows: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Rows from mappings of `FIELDS`."""
    return np.array([[row[name] for name in FIELDS] for row in rows], np.int32)
