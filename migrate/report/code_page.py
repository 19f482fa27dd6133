"""A conversion as one HTML page: every changed file side by side, with the status of its lines and filters.

The page needs nothing else. Its files are folded, and a file's table is only made when it is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.report.html import OUTCOMES, environment
from migrate.report.lines import FileLines, LineStatus, count_lines, line_summary
from migrate.report.model import Finding, Report, Severity
from migrate.report.side_by_side import changes


@dataclass(frozen=True)
class Sources:
    """A file before and after."""

    path: str
    old: str
    new: str


def write_code_page(report: Report, files: Iterable[Sources], out: Path) -> Path:
    """Writes the page.

    Args:
        report: of `scan` or `code`.
        files: the converted files; those in which nothing happened are only counted.
        out: file to write; its directory is made.

    Raises:
        UserError: `out` cannot be written.
    """
    lines = {file.path: file for file in report.files}
    findings: dict[str, list[Finding]] = {}
    for finding in report.findings:
        findings.setdefault(finding.file or "", []).append(finding)
    shown, untouched = [], 0
    for file in sorted(files, key=lambda file: file.path):
        mine = lines.get(file.path, FileLines(file.path))
        if file.old == file.new and not mine.lines and file.path not in findings:
            untouched += 1
        else:
            shown.append(_file(file, mine, findings.pop(file.path, [])))
    shown += [_without_text(path, found) for path, found in findings.items()]
    page = (
        environment()
        .get_template("code.html.j2")
        .render(
            title=f"msmigrate {report.command}: {report.subject}",
            outcome=OUTCOMES[report.exit_code],
            summary=line_summary(report.files),
            counts=[(status.value, _css(status), count_lines(report.files)[status.value]) for status in LineStatus],
            severities=[s.value for s in Severity],
            codes=[(rule.code, rule.title) for rule in report.rules.values()],
            stages=report.stages,
            facts=report.facts,
            files=shown,
            untouched=untouched,
            data=_embedded({"files": [file["data"] for file in shown], "rules": _rules(report)}),
        )
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    return out.resolve()


def _css(status: LineStatus) -> str:
    return status.value.replace(" ", "-")


def _embedded(value: Any) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _rules(report: Report) -> dict[str, dict[str, str]]:
    return {
        rule.code: {"title": rule.title, "severity": rule.severity.value, "why": rule.why, "fix": rule.fix}
        for rule in report.rules.values()
    }


def _file(file: Sources, lines: FileLines, findings: list[Finding]) -> dict[str, Any]:
    old = file.old.splitlines()
    rows = [[c.start, c.stop, [[-1 if i is None else i, text] for i, text in c.rows]] for c in _changes(file, old)]
    data = {
        "path": file.path,
        "old": old,
        "changes": rows,
        # number, status, code, message
        "lines": [[n.number, _css(n.status), n.code, n.message] for n in lines.lines],
        "findings": [[f.line or 0, f.code, f.severity.value, f.message] for f in findings],
    }
    return _entry(file.path, lines, findings, sum(len(c[2]) for c in rows), data)


def _changes(file: Sources, old: list[str]) -> list[Any]:
    return [] if file.old == file.new else changes(old, file.new.splitlines())


def _without_text(path: str, findings: list[Finding]) -> dict[str, Any]:
    """A file that is no Python source, or no file at all, with its findings."""
    found = [[f.line or 0, f.code, f.severity.value, f.message] for f in findings]
    data = {"path": path, "old": [], "changes": [], "lines": [], "findings": found}
    return _entry(path or "whole repository", FileLines(path), findings, 0, data)


def _entry(path: str, lines: FileLines, findings: list[Finding], changed: int, data: dict[str, Any]) -> dict[str, Any]:
    counts = lines.counts()
    return {
        "path": path,
        "changed": changed,
        "counts": [(status.value, _css(status), counts[status]) for status in LineStatus if counts[status]],
        "findings": [(s.value, n) for s in Severity if (n := sum(f.severity is s for f in findings))],
        "data": data,
    }
