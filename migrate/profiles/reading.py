"""Recordings of `mindspore.profiler` in a run directory, as figures by rank.

On CPU they hold each operator's times (`FRAMEWORK/cpu_op_*`), which tests read from a real recording. On an accelerator
they hold `ASCEND_PROFILER_OUTPUT/step_trace_time.csv`, whose columns are those that MindSpore 2.10 names in its
source; that reader was run on files of our own making only.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError

FOLDER = "profile"
COMMUNICATION = re.compile(
    r"AllReduce|AllGather|ReduceScatter|AllToAll|AlltoAll|Broadcast|Barrier|Receive|\bSend|hcom_"
)
"""Names of operators that wait for other ranks."""
EXECUTIONS = "cpu_op_execute_timestamp_*.txt"
STEPS = "step_trace_time.csv"


@dataclass(frozen=True)
class Recording:
    """Seconds of one rank over the recorded steps."""

    rank: int
    busy_s: float
    """In which some operator ran."""
    communication_s: float
    """In communication that no computation hides."""
    bubble_s: float | None
    """Waiting for other stages of the pipeline; None where the recording does not tell it from communication."""
    idle_s: float | None
    """In which the device did nothing; None where it follows from the time of the steps."""
    operators: tuple[tuple[str, int, float], ...] = ()
    """Type, calls and seconds, the longest first."""

    @property
    def compute_s(self) -> float:
        """In which something was computed."""
        return self.busy_s - self.communication_s


def read_recordings(run: Path) -> list[Recording]:
    """The recordings of a run, by rank.

    Raises:
        UserError: there is none, or it holds no figures.
    """
    found = []
    for folder in sorted((run / FOLDER).glob("rank_*")):
        rank = int(folder.name.removeprefix("rank_"))
        # Of a rank that recorded twice (a resumed run), the last.
        if traces := sorted(folder.rglob(STEPS)):
            found.append(_of_device(rank, traces[-1]))
        elif executions := sorted(folder.rglob(EXECUTIONS)):
            found.append(_of_cpu(rank, executions[-1]))
    if not found:
        raise UserError(f"{run / FOLDER}: no recording; train with --profile steps=FIRST:LAST")
    return found


def _of_cpu(rank: int, path: Path) -> Recording:
    spans: list[tuple[float, float]] = []
    waits: list[tuple[float, float]] = []
    types: dict[str, tuple[int, float]] = {}
    for name, start, duration in _executions(path):
        kind = re.sub(r"(-op)?\d*$", "", name.rpartition("/")[2])
        calls, seconds = types.get(kind, (0, 0.0))
        types[kind] = calls + 1, seconds + duration
        (waits if COMMUNICATION.search(kind) else spans).append((start, start + duration))
    if not spans and not waits:
        raise UserError(f"{path}: holds no operator; record steps behind the first one, which compiles")
    computing, busy = _covered(spans), _covered(spans + waits)
    ordered = sorted(((kind, *figures) for kind, figures in types.items()), key=lambda one: -one[2])
    return Recording(rank, busy, busy - computing, None, None, tuple(ordered))


def _executions(path: Path) -> Iterator[tuple[str, float, float]]:
    """(full name, start, duration) in seconds; a line is `name;kind;start_ns,duration_ms,thread start_ns,...`."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name, _, rest = line.partition(";")
        try:
            for call in rest.partition(";")[2].split():
                start, duration, _ = call.split(",")
                yield name, int(start) * 1e-9, float(duration) * 1e-3
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a line of operator times ({error})") from error


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union: operators of several threads overlap."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _of_device(rank: int, path: Path) -> Recording:
    totals = dict.fromkeys(("Computing", "Communication(Not Overlapped)", "Free", "Bubble"), 0.0)
    rows = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows += 1
            try:
                for column in totals:
                    totals[column] += float(row[column] or 0) * 1e-6  # microseconds
            except (KeyError, ValueError) as error:
                raise UserError(f"{path}: column or figure missing ({error}); made by another version?") from error
    if not rows:
        raise UserError(f"{path}: holds no step; record more steps")
    waiting = totals["Communication(Not Overlapped)"]
    busy = totals["Computing"] + waiting
    return Recording(rank, busy, waiting, totals["Bubble"], totals["Free"])
