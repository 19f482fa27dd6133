"""`BestFit`: whole documents, each into the row where it leaves the least room."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

import numpy as np

from ms_models.data.rows import FIELDS, rows_of

OPEN_ROWS = 256
"""Rows that wait for a document that fits. More of them leave less padding, and mix documents more."""
SHORTEST = 2
"""Tokens of the shortest document, its end token included; a row with less room is full."""


class BestFit:
    """Best-fit packing (Johnson 1974) of a stream with a bounded number of open rows.

    A document goes into the open row with the least room that it fits into, the oldest of these; else into a new row.
    When too many are open, the one with the least room is given out. Documents of a row are numbered in the attention
    mask, so that none sees another. A document must not be longer than a row.
    """

    def __init__(self, seq_length: int, pad: int, open_rows: int = OPEN_ROWS) -> None:
        self.seq_length, self.pad, self.open_rows = seq_length, pad, open_rows
        self._rows: dict[int, list[np.ndarray]] = {}
        self._by_room: list[tuple[int, int]] = []
        self._next = 0

    def add(self, documents: Sequence[np.ndarray]) -> np.ndarray:
        """Appends documents, end tokens included, and gives the rows that became full, `[R, 3, S]`."""
        full: list[list[np.ndarray]] = []
        for document in documents:
            assert len(document) <= self.seq_length, f"{len(document)} tokens in rows of {self.seq_length}"
            at = bisect_left(self._by_room, (len(document), -1))
            if at < len(self._by_room):
                room, number = self._by_room.pop(at)
            else:
                room, number, self._next = self.seq_length, self._next, self._next + 1
                self._rows[number] = []
            self._rows[number].append(document)
            room -= len(document)
            if room < SHORTEST:
                full.append(self._rows.pop(number))
            else:
                insort(self._by_room, (room, number))
            if len(self._by_room) > self.open_rows:
                full.append(self._rows.pop(self._by_room.pop(0)[1]))
        return self._made(full)

    def flush(self) -> np.ndarray:
        """The open rows, oldest first."""
        rows = [self._rows[number] for number in sorted(self._rows)]
        self._rows, self._by_room = {}, []
        return self._made(rows)

    def state(self) -> dict[str, np.ndarray]:
        """The open rows: their tokens, the lengths of their documents, and how many each has; oldest first."""
        rows = [self._rows[number] for number in sorted(self._rows)]
        documents = [document for row in rows for document in row]
        return {
            "tokens": np.concatenate([np.zeros(0, np.int32), *documents]),
            "lengths": np.array([len(document) for document in documents], np.int64),
            "documents": np.array([len(row) for row in rows], np.int64),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on where another packer was; what counts is the order of the rows' ages, which is kept."""
        documents = iter(np.split(state["tokens"], np.cumsum(state["lengths"])[:-1]))
        self._rows = {
            number: [next(documents) for _ in range(count)] for number, count in enumerate(state["documents"].tolist())
        }
        self._next = len(self._rows)
        self._by_room = sorted((self.seq_length - sum(map(len, row)), number) for number, row in self._rows.items())

    def _made(self, rows: list[list[np.ndarray]]) -> np.ndarray:
        tokens = np.zeros((len(rows), self.seq_length), np.int32)
        starts, kept = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
        for number, documents in enumerate(rows):
            joined = np.concatenate(documents)
            tokens[number, : len(joined)], kept[number, : len(joined)] = joined, True
            starts[number, np.cumsum([0, *map(len, documents[:-1])])] = True
        if not rows:
            return np.zeros((0, len(FIELDS), self.seq_length), np.int32)
        return rows_of(tokens, starts, kept, self.pad, isolate=True, boundary_loss=False)
