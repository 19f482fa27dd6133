"""`Tally`: what became of the documents of a corpus, source by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np

from ms_models.data.lengths import Lengths
from ms_models.data.pieces import DROPPED, SHORT, Cut
from ms_models.data.records import TRAIN, VALIDATION

EMPTY, UNDECODABLE, NULL, OVER_LONG, LOST = "empty", "undecodable", "null", "longer_than_a_sequence", "tokens_cut_off"
COUNTED = (TRAIN, VALIDATION, EMPTY, UNDECODABLE, NULL, SHORT, OVER_LONG, DROPPED)
NAMED_PROBLEMS = 5
"""How many undecodable documents the summary names; all are counted."""


@dataclass
class Tally:
    """Counts of documents and tokens, which are those of rows: end tokens and other special ones included."""

    names: Sequence[str]
    """Of the sources."""
    documents: list[Counter[str]] = dataclass_field(default_factory=list)
    """By source and by what became of them."""
    tokens: list[Counter[str]] = dataclass_field(default_factory=list)
    """By source and split; `tokens_cut_off` counts those that are in no row."""
    lengths: Lengths = dataclass_field(default_factory=Lengths)
    problems: list[str] = dataclass_field(default_factory=list)
    largest_id: int = 0

    def __post_init__(self) -> None:
        self.documents = self.documents or [Counter() for _ in self.names]
        self.tokens = self.tokens or [Counter() for _ in self.names]

    def has_text(self, source: int, key: str, problem: str, tokens: np.ndarray) -> bool:
        """Counts a document as it was read; False for one that holds no text."""
        if problem or not len(tokens):
            self.documents[source][problem or EMPTY] += 1
            if problem == UNDECODABLE and len(self.problems) < NAMED_PROBLEMS:
                self.problems.append(f"{self.names[source]}: {key} is not UTF-8")
            return False
        self.lengths.add(key, len(tokens))
        self.largest_id = max(self.largest_id, int(tokens.max()))
        return True

    def placed(self, source: int, split: str, cut: Cut) -> None:
        """Counts what a document gave."""
        self.documents[source][cut.fate or split] += 1
        self.documents[source][OVER_LONG] += cut.is_over_long
        self.tokens[source][split] += sum(map(len, cut.pieces))
        self.tokens[source][LOST] += cut.lost

    def total(self, split: str) -> int:
        """Tokens of a split so far."""
        return sum(tokens[split] for tokens in self.tokens)

    def summary(self) -> dict[str, Any]:
        """Counts, some examples of undecodable documents, and the lengths."""
        return {
            **{name: sum(documents[name] for documents in self.documents) for name in COUNTED},
            LOST: self.total(LOST),
            "undecodable_examples": self.problems,
            "length_histogram": self.lengths.octaves(),
            "lengths": self.lengths.to_dict(),
        }

    def sources(self) -> list[dict[str, Any]]:
        """Of each source: its name, documents by what became of them, tokens by split."""
        return [
            {
                "name": name,
                "documents": {kind: documents[kind] for kind in COUNTED if documents[kind]},
                "tokens": {TRAIN: tokens[TRAIN], VALIDATION: tokens[VALIDATION], LOST: tokens[LOST]},
            }
            for name, documents, tokens in zip(self.names, self.documents, self.tokens, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        """For `restore`."""
        return {
            "documents": [dict(counter) for counter in self.documents],
            "tokens": [dict(counter) for counter in self.tokens],
            "lengths": self.lengths.to_dict(),
            "problems": self.problems,
            "largest_id": self.largest_id,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the state of another tally of the same sources."""
        self.documents = [Counter(counter) for counter in state["documents"]]
        self.tokens = [Counter(counter) for counter in state["tokens"]]
        self.lengths = Lengths.from_dict(state["lengths"])
        self.problems, self.largest_id = list(state["problems"]), state["largest_id"]
