"""One report model for every command that judges, and its renderings."""

from migrate.report.model import Curve, Finding, Report, Severity, Stage, Verdict

__all__ = ["Curve", "Finding", "Report", "Severity", "Stage", "Verdict"]
