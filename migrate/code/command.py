"""`msmigrate scan` and `msmigrate code`."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from mappings.errors import UserError
from mappings.formats.weights_table import FILE as TABLE
from migrate.code import rules
from migrate.code.analysis import Analysis, analyse
from migrate.code.collector import paused
from migrate.code.context import Counts
from migrate.code.convert_file import Converted, convert_file
from migrate.code.dependencies import convert_dependencies, imported_names, may_declare
from migrate.code.execution import (
    COMPILED,
    GENERATION,
    SWITCHED,
    TRAINING,
    Step,
    as_facts,
    find_steps,
    judged,
    switched_on,
)
from migrate.code.findings import finding
from migrate.code.line_records import unread_lines
from migrate.code.migration_notes import migration_notes
from migrate.code.model_calls import HELPER as GRAPH_CALL
from migrate.code.model_calls import with_graphs
from migrate.code.parallel import convert_files
from migrate.code.project import SourceFile, load_project
from migrate.code.shard.decide import Sharding, decide
from migrate.code.shard.table import sharding_rows
from migrate.code.trees.nesting import deep_recursion
from migrate.code.verify.imports import import_modules
from migrate.code.verify.module_report import classes_that_differ, report_modules
from migrate.code.verify.modules import compare_modules
from migrate.code.verify.programs import Program, compare_steps, read_programs
from migrate.code.weights_table.table import built_module, weights_table
from migrate.code.writer import MARKER, PACKAGE, check_output, vendor, with_dependencies, write_tree
from migrate.progress import Tracker, quiet
from migrate.report import FileLines, Finding, Report, Stage, Verdict, count_lines
from migrate.report.code_page import Sources, write_code_page
from migrate.sides.recipes import read_recipes

TARGETS = ("portable", "ascend")
REPORT = "report.json"


def scan(repo: Path, *, page: Path | None = None, track: Tracker = quiet) -> Report:
    """What a conversion would do; writes no code and never runs the repository.

    Args:
        repo: the repository.
        page: HTML file to write: what would change, side by side.
        track: progress.

    Raises:
        UserError: no directory, or no Python files in it.
    """
    with deep_recursion():
        work = _work(repo, "portable", track)
    report = _report("scan", repo, work)
    if page is not None:
        write_code_page(report, _sources(work), page)
    return report


def convert(
    repo: Path,
    out: Path,
    *,
    target: str = "portable",
    force: bool = False,
    verify: bool = False,
    modules: Path | None = None,
    torch_python: str | None = None,
    page: Path | None = None,
    shard: str | None = None,
    unsafe: bool = False,
    track: Tracker = quiet,
) -> Report:
    """Convert a PyTorch repository to MindSpore.

    Args:
        repo: the repository; it is read, never imported or run.
        out: new directory; written completely or not at all.
        target: `portable` or `ascend`, which spelling of the table is taken.
        force: replace an earlier output.
        verify: import every converted module in another process afterwards. This runs code of the repository.
        modules: file of recipes; each module is built in PyTorch and in MindSpore and compared. Implies `verify`.
        torch_python: Python of the environment with PyTorch for that, if it is another than this one.
        page: HTML file to write: what changed, side by side, and the status of every line.
        shard: cut layers over tensor parallel ranks: `auto`, or the path of a plan file.
        unsafe: apply unsafe rules, which may change what the program computes (`msmigrate rule` marks them).
        track: progress.

    Raises:
        UserError: unknown target, bad plan, no directory, no Python files, or an output that may not be written.
    """
    if target not in TARGETS:
        raise UserError(f"target {target!r} is unknown; use one of {', '.join(TARGETS)}")
    recipes = [] if modules is None else read_recipes(modules)
    programs = [] if modules is None else read_programs(modules)
    if repo.is_dir():
        check_output(repo, out, force)
    with deep_recursion():
        work = _work(repo, target, track, shard, unsafe)
        table = weights_table(work.analysis)
    report = _report("code", repo, work)
    texts = dict(work.texts)
    texts[PurePosixPath(MARKER)] = migration_notes(report).encode()
    texts[PurePosixPath(REPORT)] = report.to_json().encode()
    texts[PurePosixPath(TABLE)] = table.write().encode()
    write_tree(work.analysis.project, out, texts, work.helpers)
    if verify or recipes or programs:
        _verify(report, work, out, track)
        distrusted: dict[str, str] = {}
        if recipes:
            outcomes = compare_modules(repo, out, recipes, compiled=True, torch_python=torch_python, track=track)
            report_modules(report, recipes, outcomes)
            distrusted = classes_that_differ(outcomes)
            table = dataclasses.replace(
                table, modules=tuple(built_module(outcome) for outcome in outcomes if outcome.state)
            )
            (out / TABLE).write_text(table.write(), encoding="utf-8")
        if programs:
            _compile_steps(report, work, programs, distrusted, out, track)
        _name_rules(report)
        (out / REPORT).write_text(report.to_json(), encoding="utf-8")
        (out / MARKER).write_text(migration_notes(report), encoding="utf-8")
    if page is not None:
        write_code_page(report, _sources(work), page)
    return report


def _name_rules(report: Report) -> None:
    """The words of all rules that the report names."""
    lines = (line.code for file in report.files for line in file.lines)
    report.rules = rules.used([*(found.code for found in report.findings), *lines])


def _sources(work: _Work) -> Iterator[Sources]:
    """Every readable Python file before and after."""
    for source in work.analysis.project.sources:
        if source.text is not None:
            new = work.texts.get(source.path)
            text = source.text if new is None else new.decode(source.encoding)
            yield Sources(str(source.path), source.text, text)


@dataclass
class _Work:
    analysis: Analysis
    texts: dict[PurePosixPath, bytes] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    helpers: dict[PurePosixPath, set[str]] = field(default_factory=dict)
    changed: list[SourceFile] = field(default_factory=list)
    files: list[FileLines] = field(default_factory=list)
    lines: int = 0
    compiled: int = 0
    unconverted: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    sharding: Sharding | None = None


@paused()
def _work(repo: Path, target: str, track: Tracker, shard: str | None = None, unsafe: bool = False) -> _Work:
    begin = time.perf_counter()
    analysis = dataclasses.replace(analyse(load_project(repo), track=track), unsafe=unsafe)
    sharding = None if shard is None else decide(analysis, shard)
    if sharding is not None:
        analysis = dataclasses.replace(analysis, sharding=sharding.changes)
    work = _Work(analysis, sharding=sharding)
    if sharding is not None:
        work.findings += sharding.findings
    for path, reason in analysis.unparsed.items():
        work.findings.append(finding("M101", reason, file=path))
    for source in analysis.project.sources:
        if str(source.path) in analysis.unparsed:
            work.files.append(FileLines(str(source.path), unread_lines(source.text, "M101")))
    results = convert_files(analysis, target, track=track)
    needed = frozenset().union(*(result.needs for result in results.values()))
    for module, file in analysis.files.items():
        if any(name.rpartition(".")[0] == module for name in needed):
            results[module] = convert_file(analysis, file, target, needed)
        _take(work, file.source, results[module])
    _dependencies(work)
    work.seconds = time.perf_counter() - begin
    return work


def _take(work: _Work, source: SourceFile, converted: Converted) -> None:
    assert source.text is not None
    work.lines += source.text.count("\n")
    work.findings += converted.findings
    if converted.lines:
        work.files.append(FileLines(str(source.path), converted.lines))
    work.counts.converted += converted.counts.converted
    work.counts.unconverted += converted.counts.unconverted
    work.unconverted.update(converted.counts.missed)
    for name, number in converted.counts.names.items():
        work.counts.names[name] = work.counts.names.get(name, 0) + number
    work.compiled += converted.compiles
    if converted.text != source.text:
        work.texts[source.path] = converted.text.encode(source.encoding)
        work.changed.append(source)
    if converted.helpers:
        root = work.analysis.project.import_root(source)
        work.helpers.setdefault(root, set()).update(converted.helpers)


def _dependencies(work: _Work) -> None:
    """Files that say what the repository requires."""
    project = work.analysis.project
    imported = imported_names(source.text for source in project.sources if source.text is not None)
    known = {source.path: source for source in project.sources}
    for path in filter(may_declare, [*known, *project.others]):
        source = known.get(path)
        encoding = source.encoding if source is not None else "utf-8"
        try:
            old = work.texts.get(path) or (project.root / path).read_bytes()
            text = old.decode(encoding)
        except (OSError, UnicodeDecodeError) as error:
            if source is None:  # of a Python file it is known already
                work.findings.append(finding("M101", f"cannot be read ({error})", file=str(path)))
            continue
        new, findings = convert_dependencies(path, text, imported)
        work.findings += findings
        if new != text:
            work.texts[path] = new.encode(encoding)


def _report(command: str, repo: Path, work: _Work) -> Report:
    helpers = sorted(set().union(*(with_dependencies(names) for names in work.helpers.values()), set()))
    parsed = len(work.analysis.files)
    report = Report(
        command,
        repo.resolve().name,  # the report goes into the output, which names no place of this machine
        findings=sorted(work.findings, key=lambda f: (f.file or "", f.line or 0, f.code)),
        files=sorted(work.files, key=lambda file: file.path),
    )
    report.facts = {
        "files": len(work.analysis.project.sources),
        "files_parsed": parsed,
        "files_changed": len(work.changed),
        "files_that_compile": work.compiled,
        "lines": work.lines,
        "lines_by_status": count_lines(report.files),
        "torch_names_seen": work.counts.converted + work.counts.unconverted,
        "torch_names_converted": work.counts.converted,
        "torch_names_unconverted": work.counts.unconverted,
        "unconverted": dict(work.unconverted.most_common()),
        "helpers": helpers,
        "seconds": round(work.seconds, 3),
    }
    _name_rules(report)
    if steps := _steps(work):
        report.facts["execution"] = as_facts(steps)
    if work.sharding is not None:
        report.facts["sharding"] = sharding_rows(work.sharding)
    everything = work.compiled == len(work.analysis.project.sources)
    report.stages.append(
        Stage(
            "output is valid Python",
            Verdict.PASS if everything and parsed else Verdict.FAIL,
            f"{work.compiled} of {len(work.analysis.project.sources)} files compile",
            compared=work.compiled,
        )
    )
    return report


def _verify(report: Report, work: _Work, out: Path, track: Tracker) -> None:
    """Import the converted modules; this and only this runs code of the repository."""
    results = import_modules(work.analysis.project, out, work.changed, track=track)
    failed = [result for result in results if result.reason is not None]
    for result in failed:
        reason = str(result.reason).replace(f"{out.resolve()}/", "")
        report.findings.append(finding("M601", reason, file=result.path))
    report.stages.append(
        Stage(
            "converted modules import",
            Verdict.SKIPPED if not results else Verdict.FAIL if failed else Verdict.PASS,
            f"{len(results) - len(failed)} of {len(results)} converted modules import",
            compared=len(results),
        )
    )
    report.facts["modules_imported"] = len(results) - len(failed)


def _steps(work: _Work) -> list[Step]:
    """The training steps of the output."""
    sources = [source for source in work.analysis.project.sources if source.path in work.texts]
    texts = ((str(source.path), work.texts[source.path].decode(source.encoding)) for source in sources)
    return find_steps(texts, work.findings)


def _compile_steps(
    report: Report, work: _Work, programs: list[Program], distrusted: dict[str, str], out: Path, track: Tracker
) -> None:
    """Runs the programs, and switches the steps to graphs whose results agree with the eager ones."""
    steps = judged(_steps(work), compare_steps(out, programs, _steps(work), distrusted=distrusted, track=track))
    report.facts["execution"] = as_facts(steps)
    compiled = [step for step in steps if step.mode == COMPILED]
    places = {(step.file, step.line) for step in compiled}
    report.findings[:] = [f for f in report.findings if f.code not in SWITCHED or (f.file, f.line) not in places]
    for source in work.changed:
        mine = [step for step in compiled if step.file == str(source.path)]
        if not mine:
            continue
        text = work.texts[source.path].decode(source.encoding)
        calls = {call for step in mine for call in step.calls}
        if calls:
            vendor(out / work.analysis.project.import_root(source) / PACKAGE, {GRAPH_CALL})
            report.facts["helpers"] = sorted({*report.facts["helpers"], *with_dependencies({GRAPH_CALL})})
        text = with_graphs(switched_on(text, [step.function_line for step in mine]), calls)
        work.texts[source.path] = text.encode(source.encoding)
        (out / source.path).write_bytes(work.texts[source.path])
    for kind in (TRAINING, GENERATION):
        found = [step for step in steps if step.kind == kind]
        if kind == GENERATION and not any(step.function_line for step in found):
            continue  # nothing to compare: the section on execution says why
        report.stages.append(_as_graphs(kind, found))


def _as_graphs(kind: str, steps: list[Step]) -> Stage:
    compiled = [step for step in steps if step.mode == COMPILED]
    differ = [step for step in steps if "differ" in step.reason]
    return Stage(
        f"{kind}s as graphs",
        Verdict.FAIL if differ else Verdict.PASS if compiled else Verdict.SKIPPED,
        f"{len(compiled)} of {len(steps)} {kind}s are compiled",
        compared=len(steps),
    )
