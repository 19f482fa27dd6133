"""Builds modules of the repository and of its conversion from the same weights, and compares what they compute."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from migrate.captures.compare import Difference, compare
from migrate.captures.store import MANIFEST, Capture
from migrate.code.verify.job import Job
from migrate.code.verify.lines_run import lines_run
from migrate.code.verify.module_graphs import read_graph
from migrate.code.verify.side import LOSS, STAGES
from migrate.progress import Tracker, quiet
from migrate.report import Verdict
from migrate.sides.recipes import Recipe
from migrate.sides.running import run_side

SIDES = {"PyTorch": "migrate.code.verify.torch_side", "MindSpore": "migrate.code.verify.mindspore_side"}
TOLERANCES = {"forward": 1e-5, "gradients": 1e-4, "training": 1e-5}
COMPILED = "compiled"
"""The stage that MindSpore goes through alone: eager and as a graph. `skipped` is a module that stays eager."""
ELEMENT = 100.0
"""Bound of one element, in units of the norm's: rounding is uneven, but a wrong element hides in a large norm."""
ROUNDING = 1e-6
"""A difference of gradients below this part of the largest gradient is rounding: some are zero but for it."""
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class State:
    """A tensor of the state of a module that was built."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    same_as: str | None
    """Name of the tensor that it is tied to."""


@dataclass(frozen=True)
class Outcome:
    """How one stage of one recipe ended."""

    recipe: Recipe
    stage: str
    verdict: Verdict
    message: str
    compared: int = 0
    worst: float = 0.0
    """Largest relative difference."""
    state: tuple[State, ...] = ()
    """Of the stage `weights`: the whole state of the module in PyTorch."""
    ran: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of the last stage: lines of the repository that ran in PyTorch, if both sides agree in all stages."""
    kind: str = ""
    """Of the stage `compiled`: qualified name of the module's class in the output."""


def compare_modules(
    repo: Path,
    out: Path,
    recipes: Sequence[Recipe],
    *,
    steps: int = 10,
    compiled: bool = False,
    torch_python: str | None = None,
    candidate_path: Sequence[Path] = (),
    timeout_s: float = TIMEOUT_S,
    track: Tracker = quiet,
) -> list[Outcome]:
    """Runs every recipe in the repository and in its conversion.

    Args:
        repo: the PyTorch repository; its directory goes to the front of `sys.path` of a process of its own.
        out: what `msmigrate code` wrote for it.
        recipes: what to build and to call.
        steps: training steps to compare.
        compiled: compare every module that agrees with its own results as a graph, too.
        torch_python: Python of the environment that has PyTorch, if it is another than this one.
        candidate_path: directories at the front of the search path of the MindSpore side.
        timeout_s: seconds for each side, all recipes together.
        track: progress.
    """
    with tempfile.TemporaryDirectory(prefix="msmigrate-verify-") as folder:
        reference, candidate = Path(folder) / "torch", Path(folder) / "mindspore"
        ended: dict[str, dict[int, str]] = {}
        with track("comparing modules", 2 * len(recipes)) as advance:
            for side, root, target in (("PyTorch", repo, reference), ("MindSpore", out, candidate)):
                loads = reference if side == "MindSpore" else None
                job = Job(list(recipes), root.absolute(), target, loads, steps, compiled=compiled)
                python = torch_python if side == "PyTorch" and torch_python else sys.executable
                target.mkdir()
                job.write(target / "job.json")
                command = [python, "-m", SIDES[side], str(target / "job.json")]
                path = candidate_path if loads else ()
                ended[side] = run_side(
                    side, command, target, len(recipes), timeout_s=timeout_s, path=path, advance=advance
                )
        return judge(recipes, reference, candidate, ended)


def judge(
    recipes: Sequence[Recipe], reference: Path, candidate: Path, ended: Mapping[str, Mapping[int, str]] | None = None
) -> list[Outcome]:
    """Compares what the two sides wrote, stage by stage.

    Args:
        recipes: what both sides ran.
        reference: `Job.out` of the PyTorch side.
        candidate: `Job.out` of the MindSpore side.
        ended: why a recipe killed its process, by side and number.
    """
    outcomes: list[Outcome] = []
    for number, recipe in enumerate(recipes):
        captures = [
            _read(target / str(number), (ended or {}).get(side, {}).get(number))
            for side, target in (("PyTorch", reference), ("MindSpore", candidate))
        ]
        mine = _judge(recipe, *captures)
        if all(outcome.verdict is Verdict.PASS for outcome in mine):
            mine[-1] = replace(mine[-1], ran=lines_run(reference / str(number)))
            graph = read_graph(candidate / str(number))
            if graph is not None:
                verdict = Verdict(graph.verdict)
                mine.append(Outcome(recipe, COMPILED, verdict, graph.message, 1, graph.worst, kind=graph.kind))
        outcomes += mine
    return outcomes


def _read(folder: Path, ended: str | None) -> Capture:
    if not (folder / MANIFEST).is_file():
        return Capture(folder, {}, {}, {"build": ended or "the side did not get here"})
    capture = Capture.read(folder)
    if ended is not None:
        missing = [stage for stage in STAGES if stage not in capture.stages and stage not in capture.errors]
        if missing:
            capture.errors[missing[0]] = ended
    return capture


def _judge(recipe: Recipe, reference: Capture, candidate: Capture) -> list[Outcome]:
    """Stage by stage; what the reference cannot do is `could not run` and no fault of the conversion."""
    outcomes: list[Outcome] = []
    for stage in STAGES:
        if stage == "modules":
            continue  # recorded to say where a forward difference begins
        if stage in reference.errors or stage not in reference.stages:
            reason = reference.errors.get(stage, "PyTorch did not get here")
            outcomes.append(Outcome(recipe, stage, Verdict.COULD_NOT_RUN, f"PyTorch: {reason}"))
            break
        if stage in candidate.errors or stage not in candidate.stages:
            outcomes.append(Outcome(recipe, stage, Verdict.FAIL, candidate.errors.get(stage, "no result")))
            break
        outcome = _compared(recipe, stage, reference, candidate)
        outcomes.append(outcome)
        if outcome.verdict is not Verdict.PASS and stage != "weights":
            break
    return outcomes


def _compared(recipe: Recipe, stage: str, reference: Capture, candidate: Capture) -> Outcome:
    if stage == "build":
        return Outcome(recipe, stage, Verdict.PASS, "built in both", 1)
    if stage == "weights":
        return _weights(recipe, reference, candidate)
    bound = TOLERANCES[stage]
    differences: list[Difference] = []
    problem, largest = "", 0.0
    with reference.reader(stage) as want, candidate.reader(stage) as have:
        names, given = reference.names(stage), set(candidate.names(stage))
        for name in names:
            if name not in given:
                if stage == "gradients" and not want(name).any():
                    continue  # torch made zeros where MindSpore saw no path at all
                problem = problem or f"{name} is missing in MindSpore"
                continue
            differences.append(compare(name, want(name), have(name)))
            if name != LOSS:
                largest = max(largest, float(np.abs(want(name)).max(initial=0.0)))
        for name in sorted(given - set(names)):
            # a parameter that the loss does not reach: torch gives nothing, MindSpore zeros
            if stage != "gradients" or have(name).any():
                problem = problem or f"{name} exists in MindSpore only"
    floor = ROUNDING * largest if stage == "gradients" else 0.0
    bad = [d for d in differences if not _within(d, bound) and not abs(d.reference - d.candidate) <= floor]
    worst = max((d.relative for d in differences if np.isfinite(d.relative)), default=0.0)
    if bad:
        first = bad[0]
        problem = f"{first.name}: {first.problem or f'relative {first.relative:.2g}, {first.where()}'}"
    if problem:
        if stage == "forward":
            problem += _first_divergence(reference, candidate)
        return Outcome(recipe, stage, Verdict.FAIL, problem, len(differences), worst)
    if not differences:
        return Outcome(recipe, stage, Verdict.FAIL, "nothing to compare", 0)
    return Outcome(recipe, stage, Verdict.PASS, f"{len(differences)} tensors", len(differences), worst)


def _within(difference: Difference, bound: float) -> bool:
    if difference.problem is not None:
        return difference.problem.startswith("nothing to compare")
    return difference.differing == 0 or (difference.relative <= bound and difference.element <= bound * ELEMENT)


def _weights(recipe: Recipe, reference: Capture, candidate: Capture) -> Outcome:
    names, given = reference.names("weights"), candidate.names("weights")
    problems = [f"{name} is missing in MindSpore" for name in names if name not in set(given)]
    problems += [f"{name} exists in MindSpore only" for name in given if name not in set(names)]
    with reference.reader("weights") as want, candidate.reader("weights") as have:
        for name in sorted(set(names) & set(given)):
            if want(name).shape != have(name).shape:
                problems.append(f"{name} is {list(want(name).shape)} in PyTorch, {list(have(name).shape)} in MindSpore")
        state = _state(names, want, reference)
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return Outcome(recipe, "weights", Verdict.FAIL, problems[0] + more, len(names), state=state)
    return Outcome(recipe, "weights", Verdict.PASS, f"{len(names)} names and shapes", max(len(names), 1), state=state)


def _state(names: Sequence[str], get: Callable[[str], np.ndarray], reference: Capture) -> tuple[State, ...]:
    """Every parameter was moved by noise of its own, so a state that equals one in all numbers is tied to it."""
    parameters = reference.names("gradients") if "gradients" in reference.stages else names
    first: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    found = []
    for name in names:
        value = get(name)
        same = None
        if value.dtype.kind == "f" and value.size > 1:
            known = first.setdefault((str(value.dtype), value.shape, value.tobytes()), name)
            same = known if known != name and known in parameters else None
        found.append(State(name, value.shape, str(value.dtype), same))
    return tuple(found)


def _first_divergence(reference: Capture, candidate: Capture) -> str:
    """Which submodule's output differs first, in the order in which PyTorch finished them."""
    if "modules" not in reference.stages or "modules" not in candidate.stages:
        return ""
    given = set(candidate.names("modules"))
    with reference.reader("modules") as want, candidate.reader("modules") as have:
        for name in reference.names("modules"):
            if name in given and not _within(compare(name, want(name), have(name)), TOLERANCES["forward"]):
                return f"; the first module that differs is {name.rpartition('[')[0]}"
    return "; no submodule differs, so it is in the module's own code"
