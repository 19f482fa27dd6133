"""Starts the ranks of a layout, waits for them, and brings back what they hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from migrate.captures.store import MANIFEST, Capture
from migrate.parity.job import Job
from migrate.parity.layouts.gathering import Disagreement, gather
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.processes import Outcome, run

MODULE = "migrate.parity.layouts.rank"
LOGS = "logs"


def capture_ranks(
    plan: Plan, job: Job, request: Request, out: Path, timeout_s: float
) -> tuple[Capture | str, list[Disagreement]]:
    """The MindSpore side under a layout, or the reason why there is none.

    Args:
        plan: of the comparison.
        job: for the ranks.
        request: the layout.
        out: new; takes logs and captures.
        timeout_s: after which all processes are ended.

    Returns:
        The capture of the whole model, and where ranks disagree that hold the same.
    """
    out.mkdir()
    job.write(out / "job.json")
    arguments = [str(out / "job.json"), str(out), request.text]
    outcome = start_ranks(MODULE, arguments, request.layout.world_size, out / LOGS, timeout_s)
    return collect(plan, job, request, out, None if outcome.returncode == 0 else reason_of(out / LOGS, outcome))


def start_ranks(module: str, arguments: Sequence[str], size: int, logs: Path, timeout_s: float) -> Outcome:
    """Runs a program on several ranks of this machine to its end; none is left after it, however it ends.

    Args:
        module: to run with `python -m`.
        arguments: of the program.
        size: number of ranks.
        logs: new; takes their logs.
        timeout_s: after which all are ended.
    """
    from ms_models.train.launch.place import NodePlace
    from ms_models.train.launch.processes import command_line, environment

    logs.mkdir()
    place = NodePlace(0, 1, size)
    command = command_line(module, arguments, place, place.scheduler_port(), logs)
    return run(command, timeout_s, environment(None, place))


def collect(
    plan: Plan, job: Job, request: Request, out: Path, problem: str | None
) -> tuple[Capture | str, list[Disagreement]]:
    """What the ranks left behind, put together; see `capture_ranks`.

    Args:
        plan: see there.
        job: see there.
        request: see there.
        out: with a capture of each rank.
        problem: why the launch did not end well; None if it did.
    """
    folders = [out / f"rank{rank}" for rank in range(request.layout.world_size)]
    if missing := [rank for rank, folder in enumerate(folders) if not (folder / MANIFEST).is_file()]:
        return f"MindSpore, rank {missing[0]} of {len(folders)}: {problem or 'it left nothing behind'}", []
    captures = [Capture.read(folder) for folder in folders]
    for capture in captures:
        for stage in job.stages:
            if problem is not None and stage not in capture.stages:
                capture.errors.setdefault(stage, problem)
    whole = out / "whole"
    whole.mkdir()
    return gather(replace(plan, job=job), request, captures, whole)


def reason_of(logs: Path, outcome: Outcome) -> str:
    """Why a launch did not end well, in one line: what the log of a rank says, or else how the launcher ended."""
    return (outcome.returncode is not None and _last_words(logs)) or outcome.reason()


def _last_words(logs: Path) -> str:
    """The last error line in the log of a rank."""
    for path in sorted(logs.glob("worker_*.log")):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "Error" in line.split(":")[0]]
        if errors:
            return f"{path.stem}: {errors[-1]}"
    return ""
