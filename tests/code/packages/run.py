"""`make test-packages`: public PyTorch packages, converted, imported, and their modules compared with PyTorch.

    python tests/code/packages/run.py [--build build/packages] [--jobs 2] [NAME ...]

Writes `table.md` and `table.json` into the build directory, after every package, so that a run that is ended early
leaves what it found. Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from fetch import HERE, Package, dependencies, fetch, read_package, without_torch
from table import Miss, PackageResult, as_markdown, goals

from migrate.code.analysis import analyse
from migrate.code.command import convert
from migrate.code.project import Project, load_project
from migrate.code.verify.imports import import_modules
from migrate.code.verify.modules import Outcome, compare_modules
from migrate.report import Verdict
from migrate.sides.recipes import Recipe

SIDE_TIMEOUT_S = 3600.0
"""For one side of one package: against processes that hang, also on a machine that does something else."""


def main(arguments: Sequence[str]) -> int:
    """Runs the packages of the given names, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="import names; all by default")
    parser.add_argument("--build", type=Path, default=Path("build/packages"))
    parser.add_argument("--jobs", type=int, default=2, help="packages at once")
    options = parser.parse_args(arguments)
    known = {path.stem: path for path in sorted(HERE.rglob("*.yaml"))}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"{unknown[0]} is unknown; known are {', '.join(known)}")
    packages = [read_package(known[name]) for name in options.names or known]
    build: Path = options.build.absolute()
    for package in packages:
        fetch(package, build)  # before they run side by side: several may come out of one download
        dependencies(package, build)
    begin = time.perf_counter()
    results: dict[str, PackageResult] = {}
    # Processes, because a run sets variables of its environment. The longest begin first, so that none runs alone at
    # the end.
    _end_in_order()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, initializer=_end_in_order) as pool:
        longest = sorted(packages, key=lambda package: len(package.recipes), reverse=True)
        running = [pool.submit(run_package, package, build) for package in longest]
        for done in as_completed(running):
            result = done.result()
            results[result.name] = result
            print(f"{result.name}: {result.seconds:.0f} s", file=sys.stderr, flush=True)
            _write(build, [results[p.label] for p in packages if p.label in results], options.jobs, begin)
    _write(build, [results[package.label] for package in packages], options.jobs, begin)
    print((build / "table.md").read_text(encoding="utf-8"))
    return 0 if all(goal.reached for goal in goals(list(results.values()))) else 1


def _end_in_order() -> None:
    """SIGTERM (of `timeout`, say) is an exception, so that the processes of a comparison are ended with this one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _write(build: Path, results: Sequence[PackageResult], jobs: int, begin: float) -> None:
    # The processes of a package count from the end of the pool on.
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = sum(usage.ru_utime + usage.ru_stime for usage in used)
    run = (
        f"{_commit()}; {jobs} packages at once on {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f} (15 minutes); "
        f"{(time.perf_counter() - begin) / 60:.1f} minutes, CPU time {busy / 60:.1f} minutes; "
        f"largest process {max(usage.ru_maxrss for usage in used) / 1024:.0f} MiB; Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("mindspore", "torch", "transformers"))
    )
    (build / "table.md").write_text(as_markdown(results, run), encoding="utf-8")
    body = {"run": run, "packages": [asdict(result) for result in results]}
    (build / "table.json").write_text(json.dumps(body, indent=1), encoding="utf-8")


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return f"commit {git('rev-parse', '--short', 'HEAD') or 'unknown'}{' with changes' if git('status', '-s') else ''}"


def run_package(package: Package, build: Path) -> PackageResult:
    """Converts one package and compares it with itself on PyTorch."""
    begin = time.perf_counter()
    path = [dependencies(package, build)]
    repo, out = fetch(package, build), build / "converted" / package.import_name
    report = convert(repo, out, force=True)
    project = load_project(repo)
    result = PackageResult(
        package.label,
        package.version,
        lines=report.facts["lines"],
        files=report.facts["files"],
        parsed=report.facts["files_parsed"],
        valid=report.facts["files_that_compile"],
        findings=len(report.findings),
        recipes=len(package.recipes),
        unimportable=dict(package.unimportable),
    )
    with search_path(path):
        reference = _imports(project, repo)
    with search_path([without_torch(build), *path]):
        candidate = _imports(project, out)
    for file, reason in candidate.items():
        if (problem := reference[file]) is not None:
            if file not in package.unimportable:
                result.misses.append(Miss(file, "import in PyTorch", problem))
            continue
        result.imported_in_torch += 1
        if reason is not None:
            result.misses.append(Miss(file, "import", reason))
        else:
            result.imported += 1
    classes = _module_classes(project)
    named = {recipe.name for recipe in package.recipes}
    for name in sorted(classes - named):
        reason = next((why for prefix, why in package.left_out.items() if f"{name}.".startswith(f"{prefix}.")), None)
        if reason is None:
            result.misses.append(Miss(name, "recipe", "a module class without a recipe and without a reason"))
        else:
            result.left_out[name] = reason
    with search_path(path):
        outcomes = compare_modules(
            repo, out, package.recipes, candidate_path=[without_torch(build)], timeout_s=SIDE_TIMEOUT_S
        )
    for recipe in package.recipes:
        count_outcomes(result, recipe, [outcome for outcome in outcomes if outcome.recipe is recipe])
    result.seconds = time.perf_counter() - begin
    return result


def _imports(project: Project, root: Path) -> dict[str, str | None]:
    return {entry.path: entry.reason for entry in import_modules(project, root, project.sources)}


def _module_classes(project: Project) -> set[str]:
    symbols = analyse(project).symbols
    return {name for name in symbols.classes if symbols.is_module(name) and "<locals>" not in name}


def count_outcomes(result: PackageResult, recipe: Recipe, outcomes: Sequence[Outcome]) -> None:
    """Adds how a class fared to the figures of its package."""
    ended = {outcome.stage: outcome for outcome in outcomes}
    for stage in ("build", "weights", "forward", "gradients", "training"):
        outcome = ended.get(stage)
        if outcome is None:
            return
        if outcome.verdict is Verdict.COULD_NOT_RUN:
            if stage in ("gradients", "training"):
                result.no_gradients.append(recipe.name)  # integer outputs, or no path to a parameter
            else:
                result.misses.append(Miss(recipe.name, stage, outcome.message))
            return
        if stage == "build":
            result.torch_builds += 1
        if outcome.verdict is Verdict.PASS:
            result.passed[stage] = result.passed.get(stage, 0) + 1
        else:
            result.misses.append(Miss(recipe.name, stage, outcome.message))


@contextlib.contextmanager
def search_path(folders: Sequence[Path]) -> Iterator[None]:
    """PYTHONPATH of the processes that are started inside."""
    before: Mapping[str, str] = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
