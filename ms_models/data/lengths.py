"""`Lengths`: how long the documents of a corpus are, and which are the longest."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

EDGES = sorted({round(2 ** (step / 4)) for step in range(4 * 40)})
"""Lower edges of the bins, four to a doubling."""
NAMED = 10
"""Longest documents that are named."""


@dataclass
class Lengths:
    """A histogram in tokens, with the longest documents by name."""

    bins: Counter[int] = dataclass_field(default_factory=Counter)
    """Documents by the lower edge of their bin."""
    documents: int = 0
    tokens: int = 0
    longest: list[tuple[int, str]] = dataclass_field(default_factory=list)
    """Tokens and key, shortest first."""

    def add(self, key: str, length: int) -> None:
        """Counts a document of at least one token."""
        self.bins[EDGES[bisect_right(EDGES, length) - 1]] += 1
        self.documents += 1
        self.tokens += length
        if len(self.longest) < NAMED or length > self.longest[0][0]:
            insort(self.longest, (length, key))
            del self.longest[:-NAMED]

    def octaves(self) -> dict[str, int]:
        """Documents by powers of two, e.g. `64..127`."""
        found: Counter[int] = Counter()
        for edge, count in self.bins.items():
            found[edge.bit_length()] += count
        return {f"{1 << n - 1}..{(1 << n) - 1}": found[n] for n in sorted(found)}

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "mean": round(self.tokens / self.documents, 1) if self.documents else 0,
            "bins": {str(edge): self.bins[edge] for edge in sorted(self.bins)},
            "longest": [[length, key] for length, key in reversed(self.longest)],
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> Lengths:
        """The reverse of `to_dict`."""
        bins = Counter({int(edge): count for edge, count in body["bins"].items()})
        return cls(bins, body["documents"], body["tokens"], [(n, key) for n, key in reversed(body["longest"])])
