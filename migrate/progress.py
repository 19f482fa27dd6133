"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Tracker = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""`with tracker("copying", total) as advance: advance(n)`; what long functions take as their `track` argument."""

PLAIN_INTERVAL_S = 5.0
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


class ByteCount(int):
    """A total that is in bytes: progress then shows bandwidth, too."""


@contextmanager
def quiet(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A tracker that shows nothing; the default of library calls."""
    yield lambda amount: None


@contextmanager
def shown(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """The tracker of the command line."""
    if sys.stderr.isatty():
        with _bar(title, total) as advance:
            yield advance
    else:
        with _lines(title, total) as advance:
            yield advance


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich import progress
    from rich.console import Console

    columns: list[progress.ProgressColumn] = [
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
    ]
    if isinstance(total, ByteCount):
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    columns.append(progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def _lines(title: str, total: int) -> Iterator[Callable[[int], None]]:
    done, start = 0, time.monotonic()
    last = start

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= PLAIN_INTERVAL_S:
            last = now
            print(_line(title, done, total, now - start), file=sys.stderr, flush=True)

    yield advance


def _line(title: str, done: int, total: int, seconds: float) -> str:
    """`copying: 1.20 of 4.80 GB (25%), 410 MB/s, 9 s left`."""
    if isinstance(total, ByteCount):
        unit, name = next((unit, name) for unit, name in UNITS if total >= unit or unit == 1)
        text = f"{title}: {done / unit:.2f} of {total / unit:.2f} {name} ({100 * done / max(total, 1):.0f}%)"
        text += f", {done / max(seconds, 1e-9) / 1e6:.0f} MB/s"
    else:
        text = f"{title}: {done}/{total} ({100 * done / max(total, 1):.0f}%)"
    return f"{text}, {_duration(seconds * (total - done) / done)} left" if done else text


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.0f} h"
