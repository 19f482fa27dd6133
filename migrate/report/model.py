"""What every judging command returns: findings, stages, curves, and the exit code they imply."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.report.lines import FileLines, Line, LineStatus

SCHEMA = "msmigrate-report-1"


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Verdict(StrEnum):
    """Outcome of a stage. Only `PASS` and `SKIPPED` leave a report clean."""

    PASS = "pass"
    FAIL = "fail"
    SKIPPED = "skipped"
    COULD_NOT_RUN = "could_not_run"


@dataclass(frozen=True)
class Finding:
    """One thing a person must know, with a stable code."""

    code: str
    severity: Severity
    message: str
    """What was found, with the values."""
    why: str
    """Why it matters."""
    fix: str
    """What to do about it."""
    file: str | None = None
    """Path relative to the subject of the report."""
    line: int | None = None
    """Line in `file`, from 1."""
    tensor: str | None = None
    field: str | None = None
    """Configuration field."""


@dataclass(frozen=True)
class Rule:
    """A kind of finding, or of change, in words that hold for all its places."""

    code: str
    title: str
    severity: Severity
    why: str
    fix: str
    safe: bool = True
    """Whether it is applied without being asked for."""


@dataclass(frozen=True)
class Stage:
    """One question that was asked, and its answer."""

    name: str
    verdict: Verdict
    message: str
    compared: int | None = None
    """How many things were compared; a passing comparison of zero things is refused. None: nothing to count."""
    figures: dict[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.verdict is Verdict.PASS and self.compared == 0:
            raise ValueError(f"stage {self.name!r} passes without having compared anything")


@dataclass(frozen=True)
class Curve:
    """A series to draw, e.g. the loss of one run by step."""

    name: str
    x: list[float]
    y: list[float]
    group: str = "loss"
    """Curves of one group share a plot."""


@dataclass
class Report:
    """Result of one command on one subject."""

    command: str
    subject: str
    findings: list[Finding] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain figures: versions, sizes, counts."""
    files: list[FileLines] = field(default_factory=list)
    """Lines of the subject that touch the old framework, and what became of them."""
    rules: dict[str, Rule] = field(default_factory=dict)
    """The rules that findings and lines name, where the command has a register of them."""

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings (error or warning) or mismatch, 2 a stage could not run."""
        verdicts = {stage.verdict for stage in self.stages}
        if Verdict.COULD_NOT_RUN in verdicts:
            return 2
        if Verdict.FAIL in verdicts or any(finding.severity is not Severity.NOTE for finding in self.findings):
            return 1
        return 0

    def to_json(self) -> str:
        """The report as JSON text; `from_json` reads it back."""
        return json.dumps({"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, path: Path) -> Report:
        """Reads a report.

        Raises:
            UserError: the file is no report of this version.
        """
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["schema"] != SCHEMA:
                raise UserError(f"{path}: report schema {body['schema']!r}, expected {SCHEMA!r}")
            return cls(
                command=body["command"],
                subject=body["subject"],
                findings=[Finding(**{**f, "severity": Severity(f["severity"])}) for f in body["findings"]],
                stages=[Stage(**{**s, "verdict": Verdict(s["verdict"])}) for s in body["stages"]],
                curves=[Curve(**c) for c in body["curves"]],
                facts=body["facts"],
                files=[_file_lines(f) for f in body.get("files", [])],
                rules={c: Rule(**{**r, "severity": Severity(r["severity"])}) for c, r in body.get("rules", {}).items()},
            )
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no msmigrate report ({type(error).__name__}: {error})") from error


def _file_lines(body: dict[str, Any]) -> FileLines:
    return FileLines(body["path"], [Line(**{**line, "status": LineStatus(line["status"])}) for line in body["lines"]])
