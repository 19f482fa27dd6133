"""What a report says of the modules that were compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.code.findings import finding
from migrate.code.line_records import covered
from migrate.code.verify.modules import COMPILED, TOLERANCES, Outcome
from migrate.report import Report, Stage, Verdict, count_lines
from migrate.sides.recipes import Recipe


def report_modules(report: Report, recipes: Sequence[Recipe], outcomes: Sequence[Outcome]) -> None:
    """One stage per module: how far it got, the finding where it stopped, and what became of it as a graph."""
    for recipe in recipes:
        mine = [outcome for outcome in outcomes if outcome.recipe is recipe]
        eager = [outcome for outcome in mine if outcome.stage != COMPILED]
        graph = next((outcome for outcome in mine if outcome.stage == COMPILED), None)
        worst = {outcome.stage: float(f"{outcome.worst:.2g}") for outcome in eager if outcome.stage in TOLERANCES}
        bad = next((outcome for outcome in mine if outcome.verdict not in (Verdict.PASS, Verdict.SKIPPED)), None)
        verdict = Verdict.PASS if bad is None else bad.verdict
        message = f"{', '.join(o.stage for o in eager)} agree" if bad is None else f"{bad.stage}: {bad.message}"
        if bad is None and graph is not None:
            message += f"; compiled: {graph.message}"
        if graph is not None and graph.verdict is Verdict.PASS:
            worst[COMPILED] = float(f"{graph.worst:.2g}")
        compared = sum(outcome.compared for outcome in mine)
        report.stages.append(Stage(recipe.name, verdict, message, compared=compared, figures=dict(worst)))
        if bad is not None and bad.verdict is Verdict.FAIL:
            code = "M603" if bad.compared else "M602"
            report.findings.append(finding(code, f"{recipe.name}: {bad.stage}: {bad.message}"))
    ran: dict[str, set[int]] = {}
    for outcome in outcomes:
        for path, lines in outcome.ran.items():
            ran.setdefault(path, set()).update(lines)
    report.files = [covered(file, ran.get(file.path, ())) for file in report.files]
    report.facts["lines_by_status"] = count_lines(report.files)
    if graphs := [outcome for outcome in outcomes if outcome.stage == COMPILED]:
        report.facts["modules_as_graphs"] = [_row(outcome) for outcome in graphs]


def classes_that_differ(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Why no step may be compiled that has a module of these classes."""
    bad = [outcome for outcome in outcomes if outcome.stage == COMPILED and outcome.verdict is Verdict.FAIL]
    return {outcome.kind: f"{outcome.recipe.name}: {outcome.message}" for outcome in bad}


def module_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The section of `MIGRATION.md`."""
    lines = ["", "## Modules as graphs", "", "Forward pass and gradients of the modules in the recipes:", ""]
    return lines + [f"* {row['module']}: {row['compiled']}" for row in rows]


def _row(outcome: Outcome) -> dict[str, Any]:
    row = {"module": outcome.recipe.name, "verdict": outcome.verdict.value, "compiled": outcome.message}
    return row | {"worst": float(f"{outcome.worst:.2g}")}
