"""Programs of the recipes: runs of the converted code that show whether its training steps may be compiled.

    programs:
      - {run: train.py, arguments: [--steps, "3"]}

Each runs in a copy of the output. At every training step the eager and the compiled result are computed from the same
state and compared; the run goes on with the eager one, and ends when all steps were compared often enough.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from migrate.code.execution import Step
from migrate.processes import run
from migrate.progress import Tracker, quiet

SIDE = "migrate.code.verify.step_side"
COMPARISONS = 3
"""With other batches and, after the first, other weights: what a graph kept as a constant shows."""
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Program:
    """A script and its arguments."""

    script: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepJob:
    """What the process that runs a program is told."""

    root: str
    script: str
    arguments: list[str]
    wanted: list[tuple[str, int]]
    """File and line of the functions that compute the losses."""
    result: str
    comparisons: int = COMPARISONS
    distrusted: dict[str, str] = field(default_factory=dict)
    """Qualified names of classes whose modules differ as graphs, and how."""
    tapes: list[str] = field(default_factory=list)
    """Files with losses that go back through a tape: the calls of models in them are compared."""


def read_programs(path: Path) -> list[Program]:
    """The programs of a file of recipes; none where it names none.

    Raises:
        UserError: the file cannot be read, or an entry says something unknown.
    """
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    entries = body.get("programs") if isinstance(body, Mapping) else None
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise UserError(f"{path}: expected a list under `programs`; see docs/compiled-steps.md")
    return [_program(entry, f"{path}: programs[{i}]") for i, entry in enumerate(entries)]


def _program(entry: Any, where: str) -> Program:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("run"), str):
        raise UserError(f"{where}: expected a mapping with `run`, the path of a script")
    if unknown := sorted(set(map(str, entry)) - {"run", "arguments"}):
        raise UserError(f"{where}: unknown field {unknown[0]!r}; known are run, arguments")
    arguments = entry.get("arguments") or []
    if not isinstance(arguments, list):
        raise UserError(f"{where}: `arguments` must be a list")
    return Program(entry["run"], tuple(map(str, arguments)))


def compare_steps(
    out: Path,
    programs: Sequence[Program],
    steps: Sequence[Step],
    *,
    distrusted: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    track: Tracker = quiet,
) -> dict[tuple[str, int], str | None]:
    """Runs the programs and judges the steps that they reach.

    Args:
        out: what `msmigrate code` wrote; it is copied, so what a program writes is gone afterwards.
        programs: what to run.
        steps: of the conversion.
        distrusted: classes whose modules differ as graphs, and how; their steps stay eager.
        timeout_s: seconds for each run.
        track: progress.

    Returns:
        By file and line of the function that computes the loss, or of a model's call where a tape goes back through
        it: None where the results agree, else why it stays eager.

    Raises:
        UserError: a script that the output does not have, or a program that fails before its first step.
    """
    judged: dict[tuple[str, int], str | None] = {}
    with track("comparing steps", len(programs)) as advance:
        for program in programs:
            if not (out / program.script).is_file():
                raise UserError(f"{program.script}: the repository has no such file to run; see `programs`")
            wanted = [(step.file, step.function_line) for step in steps if step.function_line]
            tapes = sorted({step.file for step in steps if step.by_tape})
            while (remaining := [place for place in wanted if place not in judged]) or tapes:
                found = _run(out, program, remaining, dict(distrusted or {}), tapes, timeout_s)
                judged.update(found)
                tapes = []
                if not any(_poisons(reason) for reason in found.values()):
                    break  # a compiler that failed leaves its process unfit for the other steps
            advance(1)
    return judged


def _poisons(reason: str | None) -> bool:
    return reason is not None and reason.startswith(FAILED)


FAILED = "the compiler failed"


def _run(
    out: Path,
    program: Program,
    wanted: Sequence[tuple[str, int]],
    distrusted: dict[str, str],
    tapes: list[str],
    timeout_s: float,
) -> dict[tuple[str, int], str | None]:
    with tempfile.TemporaryDirectory(prefix="msmigrate-steps-") as folder:
        copy, result = Path(folder) / "program", Path(folder) / "result.json"
        shutil.copytree(out, copy, symlinks=True)
        arguments = list(program.arguments)
        places = list(wanted)
        job = StepJob(str(copy), program.script, arguments, places, str(result), distrusted=distrusted, tapes=tapes)
        body = Path(folder) / "job.json"
        body.write_text(json.dumps(vars(job)), encoding="utf-8")
        ended = run(
            [sys.executable, "-m", SIDE, str(body)],
            timeout_s,
            {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if not result.is_file():
            raise UserError(f"{program.script}: ends before a step: {ended.reason()}")
        records = json.loads(result.read_text(encoding="utf-8"))
    found: dict[tuple[str, int], str | None] = {}
    for file, line, reason in records:
        died = reason == "started"
        found[file, line] = f"{FAILED}: {ended.reason()}" if died else reason
    return found
