"""`TroubleRule`: a symptom, how it is found, what causes it, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from migrate.report.model import Severity
from migrate.run_record import RunRecord


class NoEvidenceError(Exception):
    """A rule cannot look; the message says what it would need."""


@dataclass(frozen=True)
class Evidence:
    """What was found in a run."""

    message: str
    """With the figures and the steps."""
    file: str = "metrics.jsonl"
    """Where, in the run directory."""
    setting: str | None = None
    """Field of the configuration it points at."""


@dataclass(frozen=True)
class TroubleRule:
    """One row of the trouble table."""

    code: str
    symptom: str
    severity: Severity
    cause: str
    remedy: str
    look: Callable[[RunRecord], Iterator[Evidence]]
    """Raises `NoEvidenceError` where the run does not tell."""
