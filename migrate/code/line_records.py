"""What happened on each source line of one file, collected while the passes run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import libcst as cst

from mappings.api import Row
from mappings.api.evidence import passing, read_evidence, row_key
from migrate.code.rules import status_of
from migrate.report import FileLines, Line, LineStatus

_EXACT = ("same", "rename")
_TORCH = re.compile(r"(?<![\w.])torch(?!\w)")


class LineRecords:
    """Nodes with the rule that was applied there; lines are only computed when they are asked for."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._records: list[tuple[cst.CSTNode, str, str]] = []

    def add(self, node: cst.CSTNode, code: str, message: str = "") -> None:
        """A rule was applied to, or refused, a node of the original tree."""
        self._records.append((node, code, message))

    def add_row(self, node: cst.CSTNode, row: Row) -> None:
        """A row of the table was applied to a node."""
        self.add(node, _row_rule(row, self.target), row.name)

    def lines(self, line_of: Callable[[cst.CSTNode], int]) -> list[Line]:
        """One entry for each line, with the worst of its rules."""
        worst: dict[int, Line] = {}
        for node, code, message in self._records:
            line = Line(line_of(node), status_of(code), code, message)
            known = worst.get(line.number)
            if known is None or line.status.rank > known.status.rank:
                worst[line.number] = line
        return [worst[number] for number in sorted(worst)]


def unread_lines(text: str | None, code: str) -> list[Line]:
    """Lines of a file that was not converted at all and that name torch."""
    lines = enumerate((text or "").splitlines(), 1)
    return [Line(number, LineStatus.UNKNOWN, code) for number, line in lines if _TORCH.search(line)]


def covered(file: FileLines, ran: Iterable[int]) -> FileLines:
    """The lines after a comparison that agreed with PyTorch: what needed review and ran in it is proved."""
    seen = set(ran)
    lines = [
        Line(line.number, LineStatus.PROVED, line.code, line.message)
        if line.status is LineStatus.REVIEW and line.number in seen
        else line
        for line in file.lines
    ]
    return FileLines(file.path, lines)


@functools.cache
def _evidence() -> Mapping[str, Any]:
    return read_evidence()[0]


_rule_of_row: dict[int, tuple[Row, str]] = {}
"""By identity, with the row itself so that it stays alive; a digest for every use would cost more than the rest."""


def _row_rule(row: Row, target: str) -> str:
    if target == "ascend" and row.ascend is not None:
        return "C103"  # no test runs on an Ascend device
    if id(row) not in _rule_of_row:
        proved = "C101" if row.status in _EXACT else "C102"
        _rule_of_row[id(row)] = (row, proved if passing(_evidence().get(row_key(row))) else "C103")
    return _rule_of_row[id(row)][1]
