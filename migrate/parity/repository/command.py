"""`msmigrate parity code`: a converted repository against its original, module by module, stage by stage."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from migrate.captures.store import Capture
from migrate.parity.repository.explaining import explain_stage
from migrate.parity.repository.judging import Pair, exceeds, judge_stage
from migrate.parity.repository.naming import naming
from migrate.parity.repository.runs import ROUNDED, Runs, versions
from migrate.parity.repository.side import MODULES
from migrate.parity.repository.sketch import FILL_IN
from migrate.parity.repository.sources import Sources, read_sources
from migrate.parity.repository.states import STATES
from migrate.parity.stages import ORDER, TITLES, Judgement, Tolerances
from migrate.progress import Tracker, quiet
from migrate.report import Report, Stage, Verdict
from migrate.sides.recipes import Recipe, read_recipes

TIMEOUT_S = 900.0
DEFAULT_STAGES = ("W", "F", "L", "G")
"""U is added where a recipe names its optimizer."""


def code(
    converted: Path,
    *,
    original: Path | None = None,
    modules: Path | None = None,
    recipes: Sequence[Recipe] | None = None,
    stages: Sequence[str] | None = None,
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
        stages: which of W, F, L, G, U; all but U by default, and U where a recipe names its optimizer.
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
    wanted = _wanted(DEFAULT_STAGES if stages is None else stages)
    if state not in STATES:
        raise UserError(f"--state {state!r}: must be one of {', '.join(STATES)}")
    if recipes is None:
        recipes = _recipes(sources, modules)
    if stages is None and any(recipe.optimizer for recipe in recipes):
        wanted = (*wanted, "U")
    if "U" in wanted and not any(recipe.optimizer for recipe in recipes):
        raise UserError("--stages U: no recipe names its `optimizer`; see docs/parity.md")
    report = Report("parity code", converted.resolve().name)
    report.facts |= {"original": sources.original.resolve().name, "state": state}
    bounds = tolerances or Tolerances()
    steps = 3 * len(recipes)  # both sides, and the comparison
    with tempfile.TemporaryDirectory(prefix="msmigrate-parity-") as folder, track("parity", steps) as advance:
        runs = Runs(sources, list(recipes), wanted, state, Path(folder), timeout_s, torch_python, candidate_path)
        sides = runs.side("PyTorch", advance), runs.side("MindSpore", advance)
        pairs = [_pair(sources, *captures) for captures in zip(*sides, strict=True)]
        judged = [
            _judged(recipe, pair, wanted, bounds, keep_going) for recipe, pair in zip(recipes, pairs, strict=True)
        ]
        # Where rounding may be to blame, the reference says in fp64 how much of it is its own.
        for number, noise in runs.noise([n for n, of_recipe in enumerate(judged) if _exceeds(of_recipe)]).items():
            pairs[number] = replace(pairs[number], noise=noise)
            judged[number] = _judged(recipes[number], pairs[number], wanted, bounds, keep_going)
        failing = [number for number, of_recipe in enumerate(judged) if "F" in of_recipe and exceeds(of_recipe["F"])]
        for number, forced in runs.forced(failing).items():
            explanation = explain_stage(judged[number]["F"], pairs[number], forced, sources, bounds)
            rows = [{**row, "module": recipes[number].name} for row in explanation.rows]
            report.facts.setdefault("modules", []).extend(rows)
        for recipe, of_recipe in zip(recipes, judged, strict=True):
            _add(report, recipe, of_recipe, f"{recipe.name}: " if len(recipes) > 1 else "")
            advance(1)
        report.facts |= versions([capture for side in sides for capture in side])
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


def _pair(sources: Sources, reference: Capture, candidate: Capture) -> Pair:
    state = reference.names("W") if "W" in reference.stages else []
    described = reference.out / MODULES
    kind = read_json(described)["class"] if described.is_file() else ""
    return Pair(reference, candidate, naming(sources.class_of(kind), state))


def _judged(
    recipe: Recipe, pair: Pair, wanted: Sequence[str], bounds: Tolerances, keep_going: bool
) -> dict[str, Judgement]:
    """Every stage of a recipe."""
    result: dict[str, Judgement] = {}
    bad: str | None = None
    for stage in wanted:
        if stage == "U" and recipe.optimizer is None:
            judgement = Judgement(Stage(TITLES[stage], Verdict.SKIPPED, "the recipe names no optimizer"))
        elif bad is not None and not keep_going:
            judgement = Judgement(Stage(TITLES[stage], Verdict.SKIPPED, f"{bad} did not pass"))
        else:
            judgement = judge_stage(stage, replace(pair, noise=None), bounds)
            if stage in ROUNDED and exceeds(judgement) and pair.noise is not None:
                judgement = judge_stage(stage, pair, bounds)
        if judgement.stage.verdict not in (Verdict.PASS, Verdict.SKIPPED):
            bad = bad or TITLES[stage]
        result[stage] = judgement
    return result


def _exceeds(judged: Mapping[str, Judgement]) -> bool:
    return any(stage in ROUNDED and exceeds(judgement) for stage, judgement in judged.items())


def _add(report: Report, recipe: Recipe, judged: Mapping[str, Judgement], prefix: str) -> None:
    for judgement in judged.values():
        report.stages.append(replace(judgement.stage, name=f"{prefix}{judgement.stage.name}"))
        report.findings += [replace(found, message=f"{prefix}{found.message}") for found in judgement.findings]
        rows = [{**row, "module": recipe.name} for row in judgement.rows]
        report.facts.setdefault("tensors", []).extend(rows)
