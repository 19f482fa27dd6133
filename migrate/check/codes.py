"""The codes of `check` and `doctor`, read from `codes.yaml` and `doctor_codes.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from migrate.report import Finding, Report, Severity
from migrate.report import Rule as Told

TABLES = tuple(Path(__file__).with_name(name) for name in ("codes.yaml", "doctor_codes.yaml"))


@dataclass(frozen=True)
class Rule:
    """What a code stands for."""

    severity: Severity
    title: str
    why: str
    fix: str


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its code.

    Raises:
        TypeError, ValueError: the table is malformed, which is a defect of msmigrate.
    """
    bodies = [yaml.safe_load(table.read_text(encoding="utf-8")) for table in TABLES]
    rows = {code: row for body in bodies for code, row in body.items()}
    return {code: Rule(**{**row, "severity": Severity(row["severity"])}) for code, row in rows.items()}


def name_rules(report: Report) -> None:
    """Gives a report the titles and general advice of the codes that it names."""
    for found in report.findings:
        if (rule := rules().get(found.code)) is not None:
            report.rules[found.code] = Told(found.code, rule.title, rule.severity, rule.why, rule.fix)


def finding(
    code: str,
    message: str,
    *,
    file: str | None = None,
    field: str | None = None,
    tensor: str | None = None,
    fix: str | None = None,
) -> Finding:
    """A finding with the severity and reasons of its code; `fix` replaces the general advice by a better one."""
    rule = rules()[code]
    return Finding(code, rule.severity, message, rule.why, fix or rule.fix, file=file, field=field, tensor=tensor)
