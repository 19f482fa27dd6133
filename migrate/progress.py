"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Tracker = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""`with tracker("copying", total) as advance: advance(n)`; what long functions take as their `track` argument."""

PLAIN_INTERVAL_S = 5.0


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
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda amount: progress.advance(task, amount)


@contextmanager
def _lines(title: str, total: int) -> Iterator[Callable[[int], None]]:
    done, last = 0, time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        if time.monotonic() - last >= PLAIN_INTERVAL_S:
            last = time.monotonic()
            print(f"{title}: {done}/{total} ({100 * done / max(total, 1):.0f}%)", file=sys.stderr, flush=True)

    yield advance
