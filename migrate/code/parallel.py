"""Conversion of many files at once: processes that share the analysed repository and send back texts and findings."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from itertools import zip_longest

from migrate.code.analysis import Analysis
from migrate.code.convert_file import Converted, convert_file
from migrate.progress import Tracker, quiet

WORTHWHILE = 4000
"""Lines below which starting processes costs more than it saves: about two seconds of work."""

_shared: tuple[Analysis, str] | None = None
"""What the processes inherit; sending trees to them would cost as much as the work."""


def default_jobs(analysis: Analysis) -> int:
    """One process for each core that this one may use, if the repository is large enough."""
    if sys.platform != "linux" or multiprocessing.current_process().daemon:  # daemons may not start processes
        return 1
    lines = sum((file.source.text or "").count("\n") for file in analysis.files.values())
    return len(os.sched_getaffinity(0)) if lines >= WORTHWHILE else 1


def convert_files(
    analysis: Analysis, target: str = "portable", *, jobs: int | None = None, track: Tracker = quiet
) -> dict[str, Converted]:
    """Convert every file; the results are the same for every number of processes.

    Args:
        analysis: the repository.
        target: which spelling of the table is taken.
        jobs: number of processes, by default one for each core where that helps.
        track: progress.

    Returns:
        Module name -> outcome, in the order of the analysis.
    """
    jobs = default_jobs(analysis) if jobs is None else jobs
    # The longest first: the last to be finished is then a short one.
    modules = sorted(analysis.files, key=lambda module: -len(analysis.files[module].source.text or ""))
    found: dict[str, Converted] = {}
    jobs = min(jobs, len(modules))
    with _processes(analysis, target, jobs) if jobs > 1 else nullcontext() as pool:
        # The processes start here, before the display of the progress has a thread whose locks they would inherit.
        coming: list[Future[Converted]] = []
        with suppress(BrokenProcessPool):
            coming += (pool.submit(_convert, module) for module in modules if pool is not None)
        with track("converting", len(modules)) as advance:
            for module, future in zip_longest(modules, coming):
                try:
                    found[module] = _convert_here(analysis, target, module) if future is None else future.result()
                except BrokenProcessPool:  # a process was killed, for instance for its memory
                    found[module] = _convert_here(analysis, target, module)
                advance(1)
    return {module: found[module] for module in analysis.files}


@contextmanager
def _processes(analysis: Analysis, target: str, jobs: int) -> Iterator[ProcessPoolExecutor]:
    global _shared
    _shared = (analysis, target)
    try:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
            yield pool
    finally:
        _shared = None


def _convert_here(analysis: Analysis, target: str, module: str) -> Converted:
    return convert_file(analysis, analysis.files[module], target)


def _convert(module: str) -> Converted:
    assert _shared is not None
    return _convert_here(*_shared, module)


__all__ = ["WORTHWHILE", "convert_files", "default_jobs"]
