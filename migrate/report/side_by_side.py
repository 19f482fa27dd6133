"""Two versions of a file beside each other: which lines changed, and which of them belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORDS = re.compile(r"\w+")
_LARGEST = 900
"""Pairs of lines in a changed block up to which the best pairing is looked for; beyond it they are paired in order."""
_BELONGS = 0.3
"""Share of common words from which two lines are worth standing beside each other."""


@dataclass(frozen=True)
class Change:
    """Lines `start` to `stop` of the original (from 0) and what stands in their place."""

    start: int
    stop: int
    rows: tuple[tuple[int | None, str | None], ...]
    """Line of the original, or None; text of the new line beside it, or None."""


def changes(old: Sequence[str], new: Sequence[str]) -> list[Change]:
    """The changed blocks in order; everything between them is equal in both."""
    found = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            pairs = _paired(old[i1:i2], new[j1:j2])
            rows = [(None if i is None else i1 + i, None if j is None else new[j1 + j]) for i, j in pairs]
            found.append(Change(i1, i2, tuple(rows)))
    return found


def _paired(old: Sequence[str], new: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Pairs of places, in the order of both sides."""
    if not old or not new or len(old) * len(new) > _LARGEST:
        longest = range(max(len(old), len(new)))
        return [(i if i < len(old) else None, i if i < len(new) else None) for i in longest]
    words = [[frozenset(_WORDS.findall(line)) for line in side] for side in (old, new)]
    # best[i][j]: greatest sum of likenesses of pairs among old[i:] and new[j:]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    like = [[_likeness(a, b) for b in words[1]] for a in words[0]]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + like[i][j])
    pairs: list[tuple[int | None, int | None]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        if like[i][j] and best[i][j] == best[i + 1][j + 1] + like[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i][j + 1]:
            pairs.append((None, j))
            j += 1
        else:
            pairs.append((i, None))
            i += 1
    pairs += [(k, None) for k in range(i, len(old))]
    return pairs + [(None, k) for k in range(j, len(new))]


def _likeness(a: frozenset[str], b: frozenset[str]) -> float:
    """Share of common words; 0 below the bound."""
    share = len(a & b) / len(a | b) if a or b else 1.0
    return share if share >= _BELONGS else 0.0
