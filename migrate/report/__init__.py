"""One report model for every command that judges, and its renderings."""

from migrate.report.lines import FileLines, Line, LineStatus, count_lines, line_summary
from migrate.report.model import Curve, Finding, Report, Rule, Severity, Stage, Verdict

__all__ = [
    "Curve",
    "FileLines",
    "Finding",
    "Line",
    "LineStatus",
    "Report",
    "Rule",
    "Severity",
    "Stage",
    "Verdict",
    "count_lines",
    "line_summary",
]
