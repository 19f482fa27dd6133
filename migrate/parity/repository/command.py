"""`msmigrate parity code`: a converted repository against its original, module by module, stage by stage."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.weights_table import FILE as TABLE
from migrate.captures.store import MANIFEST, Capture
from migrate.parity.repository.explaining import explain_stage
from migrate.parity.repository.job import RepositoryJob
from migrate.parity.repository.judging import Pair, exceeds, judge_stage
from migrate.parity.repository.naming import naming
from migrate.parity.repository.side import BUILD, MODULES
from migrate.parity.repository.sketch import FILL_IN
from migrate.parity.repository.sources import Sources, read_sources
from migrate.parity.repository.states import STATES
from migrate.parity.stages import ORDER, TITLES, Judgement, Tolerances
from migrate.progress import Tracker, quiet
from migrate.report import Report, Stage, Verdict
from migrate.sides.recipes import Recipe, read_recipes
from migrate.sides.running import run_side

TIMEOUT_S = 900.0
PROGRAMS = {
    "PyTorch": "migrate.parity.repository.capture_torch",
    "MindSpore": "migrate.parity.repository.capture_mindspore",
}
DEFAULT_STAGES = ("W", "F", "L", "G")
ROUNDED = ("F", "L", "G")


def code(
    converted: Path,
    *,
    original: Path | None = None,
    modules: Path | None = None,
    recipes: Sequence[Recipe] | None = None,
    stages: Sequence[str] = DEFAULT_STAGES,
    state: str = STATES[0],
    tolerances: Tolerances | None = None,
    keep_going: bool = False,
    torch_python: str | None = None,
    candidate_path: Sequence[Path] = (),
    timeout_s: float = TIMEOUT_S,
    track: Tracker = quiet,
) -> Report:
    """Builds modules of a converted repository and of its original from the same weights, and compares them.

    Each side runs in a process of its own and leaves files; only those are compared. Stages: W (the state, carried over
    by the converter's table, bit for bit), F (the output of every submodule), L (the loss that a recipe names, or a
    seeded projection of the outputs), G (gradients of all parameters and of inputs of floating point), U (two steps of
    the repository's own optimizer from injected gradients, for recipes that name it). Behind the first stage of a
    module that does not pass, its others are skipped unless `keep_going`.

    Args:
        converted: what `msmigrate code` wrote.
        original: see `read_sources`.
        modules: file of recipes.
        recipes: what to build, instead of a file.
        stages: which of W, F, L, G, U.
        state: of the weights, one of `STATES`.
        tolerances: largest accepted differences.
        keep_going: judge every requested stage.
        torch_python: Python of the environment with PyTorch, if it is another than this one.
        candidate_path: directories at the front of the search path of the MindSpore side.
        timeout_s: for each side, all recipes together.
        track: progress.

    Raises:
        UserError: unknown stage or state, no recipes, or what `read_sources` raises.
    """
    sources = read_sources(converted, original)
    wanted = _wanted(stages)
    if state not in STATES:
        raise UserError(f"--state {state!r}: must be one of {', '.join(STATES)}")
    if recipes is None:
        recipes = _recipes(sources, modules)
    if "U" in wanted and not any(recipe.optimizer for recipe in recipes):
        raise UserError("--stages U: no recipe names its `optimizer`; see docs/parity.md")
    report = Report("parity code", converted.resolve().name)
    report.facts |= {"original": sources.original.resolve().name, "state": state}
    bounds = tolerances or Tolerances()
    with (
        tempfile.TemporaryDirectory(prefix="msmigrate-parity-") as folder,
        track("parity", 3 * len(recipes)) as advance,
    ):
        runs = _Runs(sources, list(recipes), wanted, state, Path(folder), torch_python, candidate_path, timeout_s)
        reference = runs.side("PyTorch", advance)
        candidate = runs.side("MindSpore", advance)
        for number, recipe in enumerate(recipes):
            pair = _pair(sources, reference.capture(number), candidate.capture(number))
            prefix = f"{recipe.name}: " if len(recipes) > 1 else ""
            _judge_recipe(report, recipe, pair, wanted, bounds, keep_going, prefix, runs, number)
            advance(1)
        for side in (reference, candidate):
            report.facts |= side.capture(0).versions
    return report


def _wanted(stages: Sequence[str]) -> tuple[str, ...]:
    unknown = [stage for stage in stages if stage not in ORDER]
    if unknown or not stages:
        raise UserError(f"--stages: {', '.join(map(repr, unknown)) or 'none'}: must be some of {', '.join(ORDER)}")
    return tuple(stage for stage in ORDER if stage in stages)


def _recipes(sources: Sources, modules: Path | None) -> list[Recipe]:
    if modules is not None:
        recipes = read_recipes(modules)
        if not recipes:
            raise UserError(f"{modules}: has no `modules` to build; see docs/code.md")
        for recipe in recipes:
            if FILL_IN in f"{recipe.build} {recipe.inputs} {recipe.keywords}":
                raise UserError(f"{modules}: {recipe.name}: still says {FILL_IN}; give a value, or take the recipe out")
        return recipes
    ready = [e.name for e in sources.table.classes if all(argument.default is not None for argument in e.arguments)]
    said = f"{', '.join(ready[:5])} could be built from defaults" if ready else "no class can be built from defaults"
    raise UserError(
        f"{sources.converted}: which modules to build is not said ({said}, but not called); write recipes and give "
        "them with --modules; `msmigrate parity code ... --sketch` prints a skeleton"
    )


@dataclass
class _Side:
    """What one side left."""

    out: Path
    ended: Mapping[int, str]

    def capture(self, number: int) -> Capture:
        """Of one recipe; one that ended its process says so in the stage where it did."""
        folder = self.out / str(number)
        if not (folder / MANIFEST).is_file():
            return Capture(folder, {}, {}, {BUILD: self.ended.get(number, "the side did not get here")})
        capture = Capture.read(folder)
        if number in self.ended:
            for stage in (BUILD, *ORDER):
                if stage not in capture.stages:
                    capture.errors.setdefault(stage, self.ended[number])
        return capture


@dataclass
class _Runs:
    """The processes of a comparison."""

    sources: Sources
    recipes: list[Recipe]
    stages: tuple[str, ...]
    state: str
    folder: Path
    torch_python: str | None
    candidate_path: Sequence[Path]
    timeout_s: float
    rounding: dict[int, Capture | None] = field(default_factory=dict)

    def side(self, name: str, advance: Callable[[int], None]) -> _Side:
        """Runs one side."""
        out = self.folder / name
        root = self.sources.original if name == "PyTorch" else self.sources.converted
        reference = None if name == "PyTorch" else self.folder / "PyTorch"
        table = (self.sources.converted / TABLE).absolute()
        job = RepositoryJob(self.recipes, root.absolute(), out, self.stages, self.state, table, reference)
        return self._run(name, job, advance)

    def noise(self, number: int) -> Capture | None:
        """The reference of one recipe in fp64; None where it cannot be had, e.g. since a module insists on fp32."""
        if number not in self.rounding:
            out, reference = self.folder / f"fp64-{number}", self._alone(number)
            stages = tuple(stage for stage in self.stages if stage in ROUNDED)
            table = (self.sources.converted / TABLE).absolute()
            root = self.sources.original.absolute()
            job = RepositoryJob([self.recipes[number]], root, out, stages, self.state, table, reference, "float64")
            side = self._run("PyTorch", job, lambda _: None)
            capture = side.capture(0)
            self.rounding[number] = capture if capture.stages else None
        return self.rounding[number]

    def forced(self, number: int) -> Capture | str:
        """The converted module of one recipe on the original's inputs, or why there is no such capture."""
        out = self.folder / f"forced-{number}"
        table = (self.sources.converted / TABLE).absolute()
        root, reference = self.sources.converted.absolute(), self._alone(number)
        job = RepositoryJob([self.recipes[number]], root, out, ("F",), self.state, table, reference, forced=True)
        capture = self._run("MindSpore", job, lambda _: None).capture(0)
        return capture if "F" in capture.stages else capture.errors.get("F", "the process ended before it")

    def _alone(self, number: int) -> Path:
        """The reference of one recipe as the reference of a job with that recipe alone."""
        reference = self.folder / f"alone-{number}"
        if not reference.is_dir():
            reference.mkdir()
            (reference / "0").symlink_to(self.folder / "PyTorch" / str(number), target_is_directory=True)
        return reference

    def _run(self, name: str, job: RepositoryJob, advance: Callable[[int], None]) -> _Side:
        job.out.mkdir()
        job.write(job.out / "job.json")
        python = self.torch_python if name == "PyTorch" and self.torch_python else sys.executable
        path = self.candidate_path if name == "MindSpore" else ()
        command = [python, "-m", PROGRAMS[name], str(job.out / "job.json")]
        total = len(job.recipes)
        ended = run_side(name, command, job.out, total, timeout_s=self.timeout_s, path=path, advance=advance)
        return _Side(job.out, ended)


def _pair(sources: Sources, reference: Capture, candidate: Capture) -> Pair:
    state = reference.names("W") if "W" in reference.stages else []
    described = reference.out / MODULES
    kind = read_json(described)["class"] if described.is_file() else ""
    return Pair(reference, candidate, naming(sources.class_of(kind), state))


def _judge_recipe(
    report: Report,
    recipe: Recipe,
    pair: Pair,
    wanted: Sequence[str],
    bounds: Tolerances,
    keep_going: bool,
    prefix: str,
    runs: _Runs,
    number: int,
) -> None:
    bad: str | None = None
    for stage in wanted:
        if stage == "U" and recipe.optimizer is None:
            judgement = Judgement(Stage(TITLES[stage], Verdict.SKIPPED, "the recipe names no optimizer"))
        elif bad is not None and not keep_going:
            judgement = Judgement(Stage(TITLES[stage], Verdict.SKIPPED, f"{bad} did not pass"))
        else:
            judgement = judge_stage(stage, pair, bounds)
            if stage in ROUNDED and exceeds(judgement) and (noise := runs.noise(number)) is not None:
                pair = replace(pair, noise=noise)
                judgement = judge_stage(stage, pair, bounds)
            if stage == "F" and exceeds(judgement):
                explanation = explain_stage(judgement, pair, runs.forced(number), runs.sources, bounds)
                rows = [{**row, "module": recipe.name} for row in explanation.rows]
                report.facts.setdefault("modules", []).extend(rows)
        if judgement.stage.verdict not in (Verdict.PASS, Verdict.SKIPPED):
            bad = bad or TITLES[stage]
        report.stages.append(replace(judgement.stage, name=f"{prefix}{judgement.stage.name}"))
        report.findings += [replace(found, message=f"{prefix}{found.message}") for found in judgement.findings]
        rows = [{**row, "module": recipe.name} for row in judgement.rows]
        report.facts.setdefault("tensors", []).extend(rows)
