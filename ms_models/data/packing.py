"""Packs pieces of documents into rows of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ms_models.data.fitting import BestFit
from ms_models.data.recipe import Recipe
from ms_models.data.rows import FIELDS, IGNORED, rows_of

State = Mapping[str, np.ndarray]


class Packer(Protocol):
    """Turns a stream of documents into rows."""

    def add(self, documents: Sequence[np.ndarray]) -> np.ndarray:
        """Appends documents, their end tokens included, and gives the rows that became full, `[R, 3, S]`."""

    def flush(self) -> np.ndarray:
        """What is left as rows with padding."""

    def state(self) -> dict[str, np.ndarray]:
        """What is not in a row yet, for `restore` of another packer."""

    def restore(self, state: State) -> None:
        """Goes on where another packer was."""


class Concatenation:
    """Document after document without regard to row borders. Only the last row, from `flush`, may hold padding."""

    def __init__(self, seq_length: int, pad: int, *, isolate: bool = False, boundary_loss: bool = True) -> None:
        self.seq_length, self.pad, self.isolate, self.boundary_loss = seq_length, pad, isolate, boundary_loss
        self._tokens, self._starts = np.zeros(0, np.int32), np.zeros(0, bool)

    def add(self, documents: Sequence[np.ndarray]) -> np.ndarray:
        """See `Packer`."""
        tokens = np.concatenate([self._tokens, *documents])
        starts = np.zeros(len(tokens), bool)
        starts[: len(self._starts)] = self._starts
        lengths = np.array([len(self._tokens), *map(len, documents)])[:-1]
        starts[np.cumsum(lengths)] = True
        full = len(tokens) // self.seq_length * self.seq_length
        self._tokens, self._starts = tokens[full:], starts[full:]
        return self._rows(tokens[:full], starts[:full], np.ones(full, bool))

    def flush(self) -> np.ndarray:
        """See `Packer`; nothing when what is left would train no token, because labels shift by one."""
        count = len(self._tokens)
        padding = (0, self.seq_length - count if count > 1 else -count)
        tokens, starts = self._tokens, self._starts
        self._tokens, self._starts = tokens[:0], starts[:0]
        if count < 2:
            return self._rows(tokens[:0], starts[:0], np.zeros(0, bool))
        kept = np.arange(self.seq_length) < count
        return self._rows(np.pad(tokens, padding), np.pad(starts, padding), kept)

    def state(self) -> dict[str, np.ndarray]:
        """See `Packer`."""
        return {"tokens": self._tokens, "starts": self._starts}

    def restore(self, state: State) -> None:
        """See `Packer`."""
        self._tokens, self._starts = state["tokens"], state["starts"]

    def _rows(self, tokens: np.ndarray, starts: np.ndarray, kept: np.ndarray) -> np.ndarray:
        shape = (-1, self.seq_length)
        return rows_of(
            tokens.reshape(shape), starts.reshape(shape), kept.reshape(shape), self.pad,
            isolate=self.isolate, boundary_loss=self.boundary_loss,
        )  # fmt: skip


class OneEach:
    """A document, or a piece of one, a row; the rest of the row is padding."""

    def __init__(self, seq_length: int, pad: int) -> None:
        self.seq_length, self.pad = seq_length, pad

    def add(self, documents: Sequence[np.ndarray]) -> np.ndarray:
        """See `Packer`."""
        tokens = np.zeros((len(documents), self.seq_length), np.int32)
        kept = np.zeros(tokens.shape, bool)
        for number, document in enumerate(documents):
            tokens[number, : len(document)], kept[number, : len(document)] = document, True
        return rows_of(tokens, np.zeros(kept.shape, bool), kept, self.pad, isolate=False, boundary_loss=True)

    def flush(self) -> np.ndarray:
        """See `Packer`; nothing is ever left."""
        return np.zeros((0, len(FIELDS), self.seq_length), np.int32)

    def state(self) -> dict[str, np.ndarray]:
        """See `Packer`; there is none."""
        return {}

    def restore(self, state: State) -> None:
        """See `Packer`."""


def packer_for(recipe: Recipe, pad: int) -> Packer:
    """The packer of a recipe; `pad` is the id of the padding token."""
    if recipe.packing == "pad":
        return OneEach(recipe.seq_length, pad)
    if recipe.packing == "fit":
        return BestFit(recipe.seq_length, pad)
    return Concatenation(recipe.seq_length, pad, isolate=recipe.isolates, boundary_loss=recipe.boundary_loss)


__all__ = ["IGNORED", "Concatenation", "OneEach", "Packer", "packer_for"]
