"""What became of each source line that touches the old framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class LineStatus(StrEnum):
    """From best to worst; a line gets the worst of what happened on it."""

    EXACT = "exact"
    """Means the same by the table, and was executed against the original."""
    PROVED = "changed and proved"
    """Written differently, and executed against the original."""
    REVIEW = "needs review"
    """Converted by a rule that nothing has been executed for in this place."""
    UNSUPPORTED = "unsupported"
    """Not converted: there is no counterpart, or not for these arguments."""
    UNKNOWN = "unknown"
    """Not converted: it is not known what the line means."""

    @property
    def rank(self) -> int:
        """Place in the order from best to worst."""
        return list(LineStatus).index(self)


@dataclass(frozen=True)
class Line:
    """A line and the rule that decided its status; `Report.rules` says why and what to do."""

    number: int
    """From 1."""
    status: LineStatus
    code: str
    message: str = ""
    """What the rule met, e.g. the name."""


@dataclass(frozen=True)
class FileLines:
    """The lines of one file that touch the old framework."""

    path: str
    """Relative to the subject of the report."""
    lines: list[Line] = field(default_factory=list)

    def counts(self) -> Counter[LineStatus]:
        """Number of lines of each status."""
        return Counter(line.status for line in self.lines)


def count_lines(files: Iterable[FileLines]) -> dict[str, int]:
    """Number of lines of each status over files, in the order of the statuses; all of them are there."""
    total: Counter[LineStatus] = Counter()
    for file in files:
        total += file.counts()
    return {status.value: total[status] for status in LineStatus}


def line_summary(files: Iterable[FileLines]) -> str:
    """`1,204 lines: 1,010 exact, 150 changed and proved, ...`; statuses without lines are left out."""
    counts = {status: number for status, number in count_lines(files).items() if number}
    total = sum(counts.values())
    parts = ", ".join(f"{number:,} {status}" for status, number in counts.items())
    return f"{total:,} line{'s' if total != 1 else ''}: {parts}" if parts else "0 lines"
