"""A report on the terminal: stages, findings grouped by code, and the outcome in the last line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from migrate.report.lines import line_summary
from migrate.report.model import Finding, Report, Severity, Verdict

VERDICT_STYLE = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.SKIPPED: "dim",
    Verdict.COULD_NOT_RUN: "bold yellow",
}
SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
OUTCOME = {0: "[green]clean[/]", 1: "[bold red]findings or mismatch[/]", 2: "[bold yellow]could not run[/]"}
PER_CODE = 5
LISTED = 12  # entries of a fact that are shown on its line


def render(report: Report, console: Console, *, per_code: int = PER_CODE, rows: bool = False) -> None:
    """Prints a report.

    Args:
        report: what to show.
        console: where to; colours follow its settings.
        per_code: how many findings of one code are listed before the rest is only counted. JSON and HTML have all.
        rows: also show the facts that are lists of records.
    """
    console.print(f"[bold]{escape(report.command)}[/] {escape(report.subject)}", soft_wrap=True)
    if report.stages:
        console.print(_stages(report))
    for findings in _by_code(report.findings).values():
        _group(findings, console, per_code)
    if rows:
        _rows(report, console)
    _facts(report, console)
    if report.files:
        console.print(escape(line_summary(report.files)), soft_wrap=True)
    console.print(f"{OUTCOME[report.exit_code]}: {_summary(report)}", soft_wrap=True)


def location(finding: Finding) -> str:
    """Where a finding is: `file:line`, tensor and field, as far as known."""
    place = f"{finding.file}:{finding.line}" if finding.file and finding.line else finding.file or ""
    return " ".join(part for part in (place, finding.tensor, finding.field) if part)


def figure(value: object) -> str:
    """A figure for a person: floats in six digits, large whole numbers grouped."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _stages(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stage", "verdict"):
        table.add_column(title, no_wrap=True)
    table.add_column("compared", justify="right", no_wrap=True)
    table.add_column("")
    for stage in report.stages:
        figures = ", ".join(f"{name} {figure(value)}" for name, value in stage.figures.items())
        text = stage.message + (f" ({figures})" if figures else "")
        verdict = f"[{VERDICT_STYLE[stage.verdict]}]{stage.verdict.value.replace('_', ' ')}[/]"
        compared = "" if stage.compared is None else f"{stage.compared:,}"
        table.add_row(escape(stage.name), verdict, compared, escape(text))
    return table


def _by_code(findings: list[Finding]) -> dict[str, list[Finding]]:
    order = {severity: index for index, severity in enumerate(Severity)}
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in sorted(findings, key=lambda item: (order[item.severity], item.code)):
        groups[finding.code].append(finding)
    return groups


def _group(findings: list[Finding], console: Console, per_code: int) -> None:
    first = findings[0]
    console.print(
        f"\n[{SEVERITY_STYLE[first.severity]}]{first.severity.value} {escape(first.code)}[/]  {escape(first.why)}"
    )
    shown = findings[:per_code]
    # Where each has a fix of its own, it stands below its finding, so that it is clear what is meant.
    has_one_fix = len({finding.fix for finding in shown}) == 1
    for finding in shown:
        where = location(finding)
        console.print(f"  {escape(where + ': ' if where else '')}{escape(finding.message)}", soft_wrap=True)
        if not has_one_fix:
            console.print(f"    fix: {escape(finding.fix)}", soft_wrap=True)
    if len(findings) > per_code:
        console.print(f"  [dim]and {len(findings) - per_code} more of {escape(first.code)}[/]")
    if has_one_fix:
        console.print(f"  fix: {escape(first.fix)}", soft_wrap=True)


def _rows(report: Report, console: Console) -> None:
    """Facts that are lists of records (the tensors of a checkpoint), one whole line each, for grep."""
    for value in report.facts.values():
        if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
            continue
        columns = list(value[0])
        cells = [columns, *([figure(row.get(column, "")) for column in columns] for row in value)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        console.print()
        for number, row in enumerate(cells):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            console.print(line, style=None if number else "bold", markup=False, highlight=False, soft_wrap=True)


def _facts(report: Report, console: Console) -> None:
    plain = {name: value for name, value in report.facts.items() if not isinstance(value, dict | list)}
    if plain:
        line = ", ".join(f"{name} {figure(value)}" for name, value in plain.items())
        console.print(f"\n[dim]{escape(line)}[/]", soft_wrap=True)
    for name, value in report.facts.items():
        if text := _listed(value):
            console.print(f"[dim]{escape(f'{name}: {text}')}[/]", soft_wrap=True)


def _listed(value: Any) -> str:
    """A short list of words or a short table of figures on one line; nothing of anything else."""
    if isinstance(value, dict):
        value = [f"{name} {figure(one)}" for name, one in value.items() if not isinstance(one, dict | list)]
    if not isinstance(value, list) or len(value) > LISTED or not all(isinstance(one, str) for one in value):
        return ""
    return ", ".join(value)


def _summary(report: Report) -> str:
    stages = _counted((stage.verdict.value.replace("_", " ") for stage in report.stages), plural="")
    findings = _counted((finding.severity.value for finding in report.findings), plural="s")
    return "; ".join(part for part in (f"stages {stages}" if stages else "", findings or "no findings") if part)


def _counted(words: Iterable[str], *, plural: str) -> str:
    """`3 pass, 1 fail`, or `2 errors, 1 note` with a plural ending."""
    return ", ".join(f"{number} {word}{plural if number > 1 else ''}" for word, number in Counter(words).items())
