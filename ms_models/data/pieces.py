"""`Cutter`: a document as the pieces that rows are made of, and what becomes of one that is too long or too short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ms_models.data.recipe import Recipe
from ms_models.data.tokenization import TokenizerFacts

SHORT, DROPPED = "too_short", "dropped_over_long"


@dataclass(frozen=True)
class Cut:
    """What a document gave."""

    pieces: tuple[np.ndarray, ...]
    """Special tokens included."""
    fate: str = ""
    """Why there is none: `too_short` or `dropped_over_long`."""
    is_over_long: bool = False
    lost: int = 0
    """Tokens that were cut off."""


class Cutter:
    """Applies the policies of a recipe, and adds the tokens that stand around a piece.

    In rows of one document each these are what the tokenizer's own template puts there (`[CLS] ... [SEP]`), and the
    end of text where the template has none; elsewhere a document is followed by the end of text.
    """

    def __init__(self, recipe: Recipe, facts: TokenizerFacts) -> None:
        self.recipe = recipe
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = (facts.eos,)
        if recipe.packing == "pad":
            before = facts.prefix
            after = facts.suffix if facts.suffix[-1:] == (facts.eos,) else (*facts.suffix, facts.eos)
        self.before, self.after = np.array(before, np.int32), np.array(after, np.int32)
        self.room = recipe.seq_length - len(before) - len(after)
        """Tokens of a document that fit into a row beside the special ones."""

    def cut(self, tokens: np.ndarray) -> Cut:
        """The pieces of one document, `[N]` int32 without special tokens."""
        recipe = self.recipe
        if len(tokens) < recipe.min_length:
            return Cut((), SHORT)
        if len(tokens) <= self.room:
            return Cut((self._whole(tokens),))
        if recipe.over_long == "drop":
            return Cut((), DROPPED, True, len(tokens))
        if recipe.over_long == "truncate":
            return Cut((self._whole(tokens[: self.room]),), "", True, len(tokens) - self.room)
        if recipe.packing in ("concatenate", "document"):
            return Cut((self._whole(tokens),), "", True)  # row borders divide it
        if recipe.packing == "pad":
            parts = [tokens[at : at + self.room] for at in range(0, len(tokens), self.room)]
            return Cut(tuple(map(self._whole, parts)), "", True)
        ended, length = self._whole(tokens), recipe.seq_length
        # A last piece of one token would have no target: it takes one from the piece before.
        last = len(ended) - 2 if len(ended) % length == 1 else len(ended)
        borders = [*range(0, last, length)]
        if last < len(ended):
            borders.append(last)
        return Cut(tuple(np.split(ended, borders[1:])), "", True)

    def _whole(self, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([self.before, tokens, self.after], dtype=np.int32)
