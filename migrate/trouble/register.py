"""The trouble table, and what becomes of it with a run."""

from __future__ import annotations

from pathlib import Path

from migrate.report.model import Finding, Report, Rule, Severity, Stage, Verdict
from migrate.run_record import RunRecord
from migrate.trouble import (
    checkpoints,
    data,
    evaluation,
    finite,
    gradients,
    layout,
    learning_rate,
    loss,
    memory,
    speed,
    stops,
)
from migrate.trouble.rule import NoEvidenceError, TroubleRule

GROUPS = {
    "loss": loss, "numbers that are not finite": finite, "gradients": gradients, "learning rate": learning_rate,
    "data": data, "speed": speed, "memory": memory, "stops": stops, "checkpoints": checkpoints,
    "evaluation": evaluation, "layout": layout,
}  # fmt: skip
RULES: dict[str, TroubleRule] = {rule.code: rule for group in GROUPS.values() for rule in group.RULES}
"""By code."""


def trouble(directory: Path) -> Report:
    """Looks for every symptom in a run.

    Raises:
        UserError: no run directory, or one of its files cannot be read.
    """
    return examine(RunRecord.read(directory))


def examine(run: RunRecord) -> Report:
    """Looks for every symptom in what a run wrote."""
    findings: list[Finding] = []
    blind: list[str] = []
    for rule in RULES.values():
        try:
            found = list(rule.look(run))
        except NoEvidenceError as reason:
            blind.append(f"{rule.code} {rule.symptom} (needs {reason})")
            continue
        findings += [
            Finding(
                rule.code, rule.severity, f"{rule.symptom}: {one.message}", why=rule.cause, fix=rule.remedy,
                file=one.file, field=one.setting,
            )
            for one in found
        ]  # fmt: skip
    seen = {finding.code for finding in findings}
    asked = len(RULES) - len(blind)
    message = f"{len(run.steps)} steps; {len(seen)} of {asked} symptoms found, {len(blind)} could not be looked for"
    is_bad = any(finding.severity is not Severity.NOTE for finding in findings)
    stage = Stage("symptoms", Verdict.FAIL if is_bad else Verdict.PASS if asked else Verdict.SKIPPED, message, asked)
    return Report(
        "trouble", str(run.directory), findings=findings, stages=[stage],
        facts={"not looked for": blind} if blind else {},
        rules={code: Rule(code, rule.symptom, rule.severity, rule.cause, rule.remedy) for code, rule in RULES.items()},
    )  # fmt: skip


def markdown() -> str:
    """The table as docs/trouble.md."""
    lines = [
        "# Trouble",
        "",
        "    msmigrate trouble RUN [--json]",
        "",
        "Looks for the symptoms below in what the run itself wrote (`metrics.jsonl`, `events.jsonl`, `restarts.jsonl`,",
        "`ranks.json`, `config.yaml`, the data's `data.json`), names steps and figures, and exits with 1 if an error",
        "or a warning was found. Symptoms that a run is too short for, or has no figures of, are listed as such.",
        "",
        "This file is made by `msmigrate trouble --markdown`; the rules are in `migrate/trouble/`.",
    ]  # fmt: skip
    for title, group in GROUPS.items():
        lines += ["", f"## {title.capitalize()}", "", "| | symptom | cause | remedy |", "|---|---|---|---|"]
        lines += [f"| {rule.code} | {rule.symptom} ({rule.severity.value}) | {rule.cause} | {rule.remedy} |"
                  for rule in group.RULES]  # fmt: skip
    return "\n".join(lines) + "\n"
