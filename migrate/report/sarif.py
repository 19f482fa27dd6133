"""Findings in SARIF 2.1.0, the exchange format of code checkers: code hosts and editors show them at their lines."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from mappings.errors import UserError
from migrate.report.model import Finding, Report, Rule

VERSION = "2.1.0"
ROOT = "SRCROOT"
"""Stands for the root of the repository; the log itself says nothing about where that is."""
FINGERPRINT = "msmigrateLine/v1"


def write_sarif(report: Report, out: Path, root: Path | None = None) -> Path:
    """Writes the findings of a report.

    Args:
        report: of any judging command.
        out: file to write; its directory is made.
        root: directory that the files of the findings are relative to. With it a fingerprint depends on the text of
            the line and not on its number, so that a finding stays the same one when lines above it come and go.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(sarif_log(report, _reader(root)), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    return out.resolve()


def sarif_log(report: Report, lines_of: Callable[[str], list[str]] = lambda _: []) -> dict[str, Any]:
    """The log of a report; `lines_of` gives the lines of a file that findings name, none if it cannot be read."""
    rules = _rules(report)
    places = {code: index for index, code in enumerate(rules)}
    seen: Counter[str] = Counter()
    results = []
    for finding in report.findings:
        lines = lines_of(finding.file) if finding.file else []
        text = lines[finding.line - 1].strip() if finding.line and finding.line <= len(lines) else ""
        result = _result(finding, places[finding.code], text, seen)
        # The rule has the general advice; what is better for this place stands with the result.
        better = {n: v for n, v in (("why", finding.why), ("fix", finding.fix)) if v != getattr(rules[finding.code], n)}
        results.append({**result, "properties": better} if better else result)
    run = {
        "tool": {
            "driver": {
                "name": "msmigrate",
                "version": version("msmigrate"),
                "rules": [_descriptor(rule) for rule in rules.values()],
            }
        },
        "invocations": [{"executionSuccessful": report.exit_code != 2, "exitCode": report.exit_code}],
        "automationDetails": {"id": f"msmigrate {report.command}/"},
        "originalUriBaseIds": {ROOT: {"description": {"text": "The root of what was checked."}}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"version": VERSION, "runs": [run]}


def _reader(root: Path | None) -> Callable[[str], list[str]]:
    known: dict[str, list[str]] = {}

    def lines_of(file: str) -> list[str]:
        if root is None:
            return []
        if file not in known:
            try:
                known[file] = (root / file).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                known[file] = []  # a finding may speak of a file that is missing
        return known[file]

    return lines_of


def _rules(report: Report) -> dict[str, Rule]:
    """The rules of the findings, by code; a command without a register of rules says it with each finding."""
    rules: dict[str, Rule] = {}
    for found in report.findings:
        told = Rule(found.code, found.code, found.severity, found.why, found.fix)
        rules.setdefault(found.code, report.rules.get(found.code, told))
    return dict(sorted(rules.items()))


def _descriptor(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in _words(rule.title)) or rule.code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} {rule.fix}", "markdown": f"{rule.why}\n\n**What to do:** {rule.fix}"},
        "defaultConfiguration": {"level": rule.severity.value},
        "properties": {"safe": rule.safe},
    }


def _words(title: str) -> Iterable[str]:
    return "".join(c if c.isalnum() else " " for c in title).split()


def _result(finding: Finding, rule: int, text: str, seen: Counter[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": finding.message},
        "partialFingerprints": {FINGERPRINT: _fingerprint(finding, text, seen)},
    }
    location: dict[str, Any] = {}
    if finding.file:
        uri = quote(PurePosixPath(finding.file).as_posix())
        location["physicalLocation"] = {"artifactLocation": {"uri": uri, "uriBaseId": ROOT}}
        if finding.line:
            location["physicalLocation"]["region"] = {"startLine": finding.line}
            if text:
                location["physicalLocation"]["region"]["snippet"] = {"text": text}
    names = [name for name in (finding.tensor, finding.field) if name]
    if names:
        location["logicalLocations"] = [{"fullyQualifiedName": name} for name in names]
    if location:
        result["locations"] = [location]
    return result


def _fingerprint(finding: Finding, text: str, seen: Counter[str]) -> str:
    """The same for the same finding on the same text wherever that stands; equal ones are told apart by their order."""
    where = text or (str(finding.line) if finding.line else "")
    parts = (finding.code, finding.file, where, finding.message, finding.tensor, finding.field)
    base = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    seen[base] += 1
    return f"{base[:32]}:{seen[base]}"
