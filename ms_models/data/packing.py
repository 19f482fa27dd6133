"""Packs documents into rows of one length: document, end of text, next document, without regard to row borders."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

IGNORED = -100
"""Label of a position that has no target; Hugging Face's value."""


class Packer:
    """Turns a stream of documents into rows of `seq_length` tokens.

    Every document is followed by one end-of-text token; a document longer than what is left of a row goes on in the
    next one. Only the last row, from `flush`, may hold padding.
    """

    def __init__(self, seq_length: int, eos: int, pad: int) -> None:
        self.seq_length, self.eos, self.pad = seq_length, eos, pad
        self._rest = np.zeros(0, np.int32)

    def add(self, tokens: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        """Appends a document and yields the rows that became full."""
        stream = np.concatenate([self._rest, tokens.astype(np.int32), np.array([self.eos], np.int32)])
        full = len(stream) // self.seq_length * self.seq_length
        self._rest = stream[full:]
        for row in stream[:full].reshape(-1, self.seq_length):
            yield make_row(row, self.seq_length, self.pad)

    def flush(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields what is left as one padded row; nothing when that would train no token (labels shift by one)."""
        if len(self._rest) > 1:
            yield make_row(self._rest, self.seq_length, self.pad)
        self._rest = np.zeros(0, np.int32)


def make_row(tokens: np.ndarray, seq_length: int, pad: int) -> dict[str, np.ndarray]:
    """One record of three int32 arrays of `seq_length`: input_ids, attention_mask (1 keep, 0 pad), labels.

    Labels stand at the position of their token, as Hugging Face has them; the model shifts.
    """
    padding = (0, seq_length - len(tokens))
    return {
        "input_ids": np.pad(tokens, padding, constant_values=pad).astype(np.int32),
        "attention_mask": np.pad(np.ones(len(tokens), np.int32), padding),
        "labels": np.pad(tokens, padding, constant_values=IGNORED).astype(np.int32),
    }
