"""The terminal rendering: everything a person needs, nothing swallowed by markup."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from migrate.report import Finding, Report, Severity, Stage, Verdict
from migrate.report.terminal import figure, render


def shown(report: Report, **options: int) -> str:
    out = io.StringIO()
    render(report, Console(file=out, width=200, color_system=None), **options)
    return out.getvalue()


def finding(number: int, severity: Severity = Severity.ERROR) -> Finding:
    message = f"message [{number}] of [bold]text[/bold]"
    return Finding("C201", severity, message, "why", "fix it", file="a.py", line=3, tensor="w", field="f")


def test_stages_findings_facts_and_outcome_are_shown() -> None:
    report = Report(
        "check",
        "models/x",
        findings=[finding(1)],
        stages=[
            Stage("vocabulary", Verdict.FAIL, "1 error", 2050, {"rows": 300, "ratio": 1.23456789e-7}),
            Stage("layout", Verdict.SKIPPED, "no run"),
        ],
        facts={"family": "qwen2", "bytes": 4006400, "nested": {"a": 1}},
    )
    text = shown(report)
    for part in (
        "check models/x",
        "vocabulary",
        "fail",
        "2,050",
        "(rows 300, ratio 1.23457e-07)",
        "skipped",
        "no run",
        "error C201  why",
        "a.py:3 w f: message [1] of [bold]text[/bold]",
        "fix: fix it",
        "family qwen2, bytes 4,006,400",
        "findings or mismatch: stages 1 fail, 1 skipped; 1 error",
    ):
        assert part in text, part


def test_long_lists_are_counted() -> None:
    text = shown(Report("check", "x", findings=[finding(n) for n in range(12)]), per_code=5)
    assert text.count("a.py:3") == 5
    assert "and 7 more of C201" in text
    assert "12 errors" in text


def test_each_finding_that_has_a_fix_of_its_own_has_it_below() -> None:
    lines = shown(Report("check", "x", findings=[replace(finding(n), fix=f"fix {n}") for n in range(2)])).splitlines()
    places = [number for number, line in enumerate(lines) if "a.py:3" in line]
    assert [lines[at + 1] for at in places] == ["    fix: fix 0", "    fix: fix 1"]
    same = shown(Report("check", "x", findings=[finding(n) for n in range(2)]))
    assert same.count("fix: fix it") == 1


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (Report("a", "b", stages=[Stage("s", Verdict.PASS, "", 1)]), "clean: stages 1 pass; no findings"),
        (Report("a", "b", findings=[finding(1, Severity.NOTE)]), "clean: 1 note"),
        (Report("a", "b", stages=[Stage("s", Verdict.COULD_NOT_RUN, "")]), "could not run: stages 1 could not run"),
    ],
)
def test_the_last_line_is_the_outcome(report: Report, outcome: str) -> None:
    assert shown(report).splitlines()[-1].startswith(outcome)


def test_figures_are_readable() -> None:
    assert [figure(value) for value in (1234567, 0.1, 1e-12, True, "x")] == ["1,234,567", "0.1", "1e-12", "yes", "x"]


def test_lists_of_records_are_whole_lines_however_narrow_the_terminal() -> None:
    name = "model.layers.0.post_attention_layernorm.weight" * 3
    report = Report("weights inspect", "dir", facts={"tensors": [{"name": name, "shape": [2, 3], "bytes": 24576}]})
    console = Console(file=io.StringIO(), width=40)
    render(report, console, rows=True)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert f"{name}  [2, 3]  24,576" in lines
    assert any(line.split() == ["name", "shape", "bytes"] for line in lines)
