"""Counts what a topic compared, so that a topic that compared nothing cannot pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from migrate.check.subject import Subject
from migrate.report import Finding


@dataclass
class Tally:
    """Number of comparisons made so far."""

    compared: int = 0

    def add(self, amount: int = 1) -> None:
        """Counts comparisons."""
        self.compared += amount


Assertion = Callable[[Subject, Tally], Iterable[Finding]]
"""One thing that must hold: yields what is wrong, and counts what it compared."""
