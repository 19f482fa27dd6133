"""Where each rank is, many times per step: a record of fixed size that it overwrites and its launcher reads.

One `pwrite` to a file that stays open: a few microseconds, and on a network file system no round trip. Imports no
MindSpore.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PHASES = ("start", "data", "compute", "reduce", "update", "report", "evaluate", "save", "end")
"""In the order of a step; where ranks of one step stand in different ones, the others wait for the first of them."""
SIZE = 96
"""Bytes of a record: one page write, so that a reader never sees halves of two."""


@dataclass(frozen=True)
class Beat:
    """Where a rank was when it last said so."""

    step: int
    phase: str
    count: int
    """Records that the process has written; changes whenever the rank goes on."""
    is_first: bool
    """Whether the process is in this phase for the first time, in which it may compile."""

    @property
    def progress(self) -> tuple[int, int]:
        """How far the rank has come; of two ranks, the one with the lower value is waited for."""
        return self.step, PHASES.index(self.phase)

    def __str__(self) -> str:
        return f"step {self.step}, {self.phase}" if self.step else self.phase


class BeatFile:
    """The record of this process."""

    def __init__(self, logs: Path, rank: int) -> None:
        self._file = os.open(logs / file_name(rank), os.O_CREAT | os.O_WRONLY, 0o644)
        self._seen: set[str] = set()
        self._step = self._count = 0

    def enter(self, phase: str, step: int | None = None) -> None:
        """The rank begins a phase; with the step that it belongs to, where that changes."""
        assert phase in PHASES, f"no such phase: {phase}"
        self._step = self._step if step is None else step
        self._count += 1
        is_first = phase not in self._seen
        self._seen.add(phase)
        record = json.dumps([self._step, phase, self._count, is_first]).encode()
        os.pwrite(self._file, record.ljust(SIZE), 0)


def file_name(rank: int) -> str:
    """Name of a rank's record."""
    return f"beat_{rank:05d}.json"


def read_beats(logs: Path, ranks: Iterable[int]) -> dict[int, Beat]:
    """The records of ranks that have written one."""
    found = {}
    for rank in ranks:
        path = logs / file_name(rank)
        if path.is_file() and (text := path.read_bytes().strip()):
            found[rank] = Beat(*json.loads(text))
    return found


def clear(logs: Path) -> None:
    """Removes the records of an earlier attempt."""
    for path in logs.glob("beat_*.json"):
        path.unlink()
