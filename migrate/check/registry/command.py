"""`msmigrate registry`: model types of a repository against everything that gives such names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_config
from migrate.check.codes import finding, name_rules
from migrate.check.registry import dynamic, renaming
from migrate.check.registry.installed import imported_packages, library
from migrate.check.registry.judging import judge
from migrate.check.registry.source_scan import Scan
from migrate.report import Finding, Report, Severity, Stage, Verdict


def registry(repository: Path, *, models: Sequence[Path] = (), modules: Sequence[str] = ()) -> Report:
    """Judges the model types of a repository.

    Reads the repository, the installed packages that it imports, the tables of the installed transformers, cached
    remote code and the names of ms_models; imports none of them, except modules that are named.

    Args:
        repository: directory of Python source, or one file.
        models: model directories whose `config.json` belongs to it.
        modules: modules of the repository to import in a process of their own.

    Raises:
        UserError: a path is missing or unreadable.
    """
    scan = Scan(repository)
    if not scan.files:
        raise UserError(f"{repository}: holds no Python file")
    packages = {name: Scan(folder, name) for name, folder in imported_packages(repository).items()}
    installed = library()
    report = Report("registry", str(repository))
    configs = {str(path): read_config(path) for path in models}
    if repository.is_dir():
        for path in sorted(repository.rglob("config.json")):
            body = _plain(path)
            if "model_type" in body:
                configs[path.relative_to(repository).as_posix()] = body
    for name, reason in scan.unreadable.items():
        report.findings.append(replace(finding("C514", f"{name}: {reason}"), file=name))
    sightings = [*(found for package in packages.values() for found in package.sightings), *scan.sightings]
    findings = list(judge(sightings, installed, configs, _cache()))
    # The command as it can be typed.
    report.findings += [replace(f, fix=f.fix.replace(" REPO ", f" {repository} ")) for f in findings]
    compared = len(sightings) + len(configs)
    read = "1 Python file" if scan.files == 1 else f"{scan.files} Python files"
    nothing = f"no model type is registered or used in {read}, so there was nothing to compare"
    report.stages.append(_stage("names", findings, compared, nothing))
    if modules:
        recording = dynamic.record(repository if repository.is_dir() else repository.parent, modules)
        happened = list(dynamic.judge_recording(recording))
        report.findings += happened
        count = len(recording.events) + len(recording.imported)
        if count and not compared:  # what the source does not say, the import did
            report.stages[-1] = replace(report.stages[-1], verdict=Verdict.SKIPPED)
        report.stages.append(_stage("imports", happened, count, "nothing was imported"))
        report.facts["registrations"] = recording.events
    else:
        report.stages.append(Stage("imports", Verdict.SKIPPED, "no module named (--import)"))
    report.facts |= {
        "files": scan.files,
        "packages": sorted(packages),
        "transformers": installed.version if installed else "not installed",
        "names": sorted({found.name for found in scan.sightings if found.name}),
    }
    name_rules(report)
    return report


def rename(repository: Path, change: str, *, models: Sequence[Path] = (), write: bool) -> tuple[str, int]:
    """Gives a model type another name.

    Args:
        repository: directory of source files.
        change: `old=new`.
        models: model directories outside of the repository.
        write: make the edits, instead of showing them only.

    Returns:
        The edits as a diff, and the number of files.

    Raises:
        UserError: `change` is malformed, the new name is taken by the installed transformers, or see `renaming.rename`.
    """
    old, equals, new = change.partition("=")
    if not equals or not old or not new:
        raise UserError(f"--rename {change}: must have the form old=new")
    installed = library()
    if installed is not None and new in installed.names:
        raise UserError(f"--rename {change}: {new!r} is {installed.names[new][0]} of transformers {installed.version}")
    edits = renaming.rename(repository, old, new, models)
    if write:
        for edit in edits:
            edit.write()
    return "".join(edit.diff() for edit in edits), len(edits)


def _stage(name: str, findings: list[Finding], compared: int, nothing: str) -> Stage:
    errors = [found for found in findings if found.severity is Severity.ERROR]
    if errors:
        return Stage(name, Verdict.FAIL, errors[0].message, compared)
    if not compared:
        return Stage(name, Verdict.COULD_NOT_RUN, nothing)
    return Stage(name, Verdict.PASS, f"{compared} looked at", compared)


def _plain(path: Path) -> dict[str, Any]:
    try:
        return read_config(path.parent)
    except UserError:
        return {}  # a config.json of something else


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_MODULES_CACHE") or Path(home) / "modules")
