"""A group of findings as a stage of the report."""

from __future__ import annotations

from migrate.report import Finding, Report, Severity, Stage, Verdict


def add_stage(report: Report, name: str, findings: list[Finding], compared: int) -> None:
    """Adds findings and the stage that they belong to; it fails where one of them is an error."""
    report.findings += findings
    errors = [found for found in findings if found.severity is Severity.ERROR]
    if errors:
        report.stages.append(Stage(name, Verdict.FAIL, errors[0].message, compared))
    else:
        report.stages.append(Stage(name, Verdict.PASS, f"{compared} checked", compared))
