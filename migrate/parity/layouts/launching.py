"""Starts the ranks of a layout, waits for them, and brings back what they hold together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from migrate.captures.store import MANIFEST, Capture
from migrate.parity.job import Job
from migrate.parity.layouts.gathering import Disagreement, gather
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.processes import run

MODULE = "migrate.parity.layouts.rank"


def capture_ranks(
    plan: Plan, job: Job, request: Request, out: Path, timeout_s: float, module: str = MODULE
) -> tuple[Capture | str, list[Disagreement]]:
    """The MindSpore side under a layout, or the reason why there is none.

    Args:
        plan: of the comparison.
        job: for the ranks.
        request: the layout.
        out: new; takes logs and captures.
        timeout_s: after which all processes are ended.
        module: program of a rank.

    Returns:
        The capture of the whole model, and where ranks disagree that hold the same.
    """
    from ms_models.train.launch.place import NodePlace
    from ms_models.train.launch.processes import command_line, environment

    logs = out / "logs"
    logs.mkdir(parents=True)
    job.write(out / "job.json")
    size = request.layout.world_size
    place = NodePlace(0, 1, size)
    arguments = [str(out / "job.json"), str(out), request.text]
    command = command_line(module, arguments, place, place.scheduler_port(), logs)
    outcome = run(command, timeout_s, environment(None, place))
    folders = [out / f"rank{rank}" for rank in range(size)]
    if missing := [rank for rank, folder in enumerate(folders) if not (folder / MANIFEST).is_file()]:
        return f"MindSpore, rank {missing[0]} of {size}: {_last_words(logs) or outcome.reason()}", []
    captures = [Capture.read(folder) for folder in folders]
    if outcome.returncode != 0:
        reason = _last_words(logs) or outcome.reason()
        for capture in captures:
            for stage in job.stages:
                if stage not in capture.stages:
                    capture.errors.setdefault(stage, reason)
    whole = out / "whole"
    whole.mkdir()
    return gather(replace(plan, job=job), request, captures, whole)


def _last_words(logs: Path) -> str:
    """The last error line in the log of a rank."""
    for path in sorted(logs.glob("worker_*.log")):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "Error" in line.split(":")[0] or line.startswith('{"error"')]
        if errors:
            return f"{path.stem}: {errors[-1]}"
    return ""
