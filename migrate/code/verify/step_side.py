"""Runs a converted program and compares its steps, eager and compiled. `python -m ...step_side JOB`."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from migrate.code.execution import AGREES
from migrate.code.verify.call_side import CallComparison
from migrate.code.verify.decode_side import DecodeComparison
from migrate.code.verify.graph_comparison import GraphComparison, comparison_of_gradient
from migrate.code.verify.programs import FAILED, StepJob

DROPOUT = f"{AGREES}compared without dropout, whose masks each call of a graph draws anew"


class _Enough(BaseException):
    """Everything was compared; no `except Exception` of the program stops it."""


class Comparison:
    """The steps of a program."""

    def __init__(self, job: StepJob) -> None:
        self.job = job
        self.wanted = {(file, line) for file, line in job.wanted}
        self.reasons: dict[tuple[str, int], str | None] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.so_far: dict[tuple[str, int], str | None] = {}
        """What is to be said of a generation step if the program ends now."""

    def training(self, backward: Any, compiled_step: Any) -> None:
        """Takes the place of `ms_compat.backward.backward_of`."""
        self.backward, self.compiled_step, self.original = backward, compiled_step, backward.backward_of
        backward.backward_of = self.backward_of

    def backward_of(self, forward: Callable[..., Any], *sources: Any, compiled: bool = False) -> Callable[..., Any]:
        """The eager step, which is compared on its way."""
        eager = self.original(forward, *sources)
        code = getattr(forward, "__code__", None)
        if code is None:
            return eager
        place = self.place(code.co_filename, code.co_firstlineno)
        if place not in self.wanted:
            return eager
        gradient = self.backward.Gradient(forward)
        comparison = comparison_of_gradient(self.compiled_step, forward, sources, gradient)

        def compared(*args: Any, **kwargs: Any) -> Any:
            if place not in self.reasons and not self.distrusted(place, sources):
                self.settle(place, comparison, self.backward.trainable(sources), args, kwargs)
            return eager(*args, **kwargs)

        return compared

    def distrusted(self, place: tuple[str, int], sources: Iterable[Any]) -> bool:
        """Judges a step with a module of a class that is known to differ as a graph."""
        if not self.job.distrusted:
            return False
        for source in sources:
            for _, cell in source.cells_and_names() if hasattr(source, "cells_and_names") else ():
                how = self.job.distrusted.get(f"{type(cell).__module__}.{type(cell).__qualname__}")
                if how is not None:
                    self.judge(place, f"a module differs as a graph: {how}")
                    return True
        return False

    def place(self, file: str, line: int) -> tuple[str, int]:
        """File, from the root of the output, and line."""
        path = os.path.relpath(os.path.realpath(file), os.path.realpath(self.job.root))
        return Path(path).as_posix(), line

    def settle(
        self, place: tuple[str, int], comparison: GraphComparison, parameters: Any, args: Any, kwargs: Any
    ) -> None:
        """Compares once more, and judges the place when that is enough."""
        self.write({place: "started"})
        difference = comparison.difference(parameters, args, kwargs)
        if comparison.refused is not None:
            reason = self.relative(comparison.refused)
            self.judge(place, f"{FAILED}: {reason}" if comparison.failed else reason)
        elif difference is not None:
            self.judge(place, difference)
        else:
            self.counts[place] = self.counts.get(place, 0) + 1
            if self.counts[place] >= self.job.comparisons:
                self.judge(place, DROPOUT if comparison.has_dropout else None)
            else:
                self.write({place: f"it was compared {self.counts[place]} times only"})

    def relative(self, reason: str) -> str:
        return reason.replace(self.job.root + os.sep, "").replace(os.path.realpath(self.job.root) + os.sep, "")

    def judge(self, place: tuple[str, int], reason: str | None) -> None:
        self.reasons[place] = reason
        self.write({})
        if self.job.tapes:
            return  # which calls there are, the whole run tells
        if set(self.reasons) >= self.wanted or (reason is not None and reason.startswith(FAILED)):
            raise _Enough

    def write(self, more: dict[tuple[str, int], str | None]) -> None:
        """At every change: a compiler may end the process."""
        counted = {place: f"it was compared {n} times only" for place, n in self.counts.items()}
        records = [[*place, reason] for place, reason in {**counted, **self.so_far, **more, **self.reasons}.items()]
        Path(self.job.result).write_text(json.dumps(records), encoding="utf-8")


def main(path: Path) -> None:
    """Runs the job in a file."""
    job = StepJob(**json.loads(path.read_text(encoding="utf-8")))
    import mindspore

    mindspore.runtime.launch_blocking()
    script = Path(job.root) / job.script
    os.chdir(script.parent)
    root = script.parent
    while not (root / "ms_compat").is_dir() and root != Path(job.root):
        root = root.parent
    sys.path[:0] = [str(script.parent), str(root)]
    sys.argv = [str(script), *job.arguments]
    comparison = Comparison(job)
    helpers = root / "ms_compat"
    if (helpers / "backward.py").is_file():
        comparison.training(
            importlib.import_module("ms_compat.backward"), importlib.import_module("ms_compat.compiled_step")
        )
    if (helpers / "decode_step.py").is_file():
        generation: Any = importlib.import_module("ms_compat.decode_step")
        generation.decode_step = DecodeComparison(comparison, generation).decode_step
    if job.tapes:
        CallComparison(comparison, job.tapes)
    comparison.write({})
    with contextlib.suppress(_Enough):
        runpy.run_path(str(script), run_name="__main__")
    sys.stdout.flush()
    os._exit(0)  # a process whose compiler failed may not end by itself


if __name__ == "__main__":
    main(Path(sys.argv[1]))
