"""Where this process is, said at a few places of the loop and of a step: `enter("reduce")`.

One process is one rank, so there is one record, opened by the worker. Where none is open (a trainer in a test, a
notebook) `enter` does nothing. Imports no MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ms_models.train.launch.beats import BeatFile

_record: BeatFile | None = None
_observers: list[Callable[[str], None]] = []


def open_record(logs: Path, rank: int) -> None:
    """From now on this process says where it is, for its launcher to see whether it hangs and in what."""
    global _record
    _record = BeatFile(logs, rank)


def observe(observer: Callable[[str], None]) -> None:
    """From now on this one is told the name of each phase that begins, in place of an earlier one."""
    _observers[:] = [observer]


def enter(phase: str, step: int | None = None) -> None:
    """This process begins a phase of `beats.PHASES`; with the number of the step, where that changes."""
    if _record is not None:
        _record.enter(phase, step)
    for observer in _observers:
        observer(phase)
