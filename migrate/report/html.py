"""Reports as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mappings.errors import UserError
from migrate.report.chart import differences, line_chart, swatch
from migrate.report.layer_chart import layer_chart
from migrate.report.model import Curve, Finding, Report, Severity, Verdict
from migrate.report.module_tree import Node, compared_modules, has_column, module_tree
from migrate.report.terminal import figure, location

TEMPLATES = Path(__file__).with_name("templates")
VERDICTS = {
    Verdict.PASS: "passed", Verdict.FAIL: "failed", Verdict.COULD_NOT_RUN: "could not run", Verdict.SKIPPED: "skipped",
}  # fmt: skip
OUTCOMES = {0: ("pass", "clean"), 1: ("fail", "findings or mismatch"), 2: ("could_not_run", "could not run")}
CURVES = "curves"  # the report that holds curves named by the user
BY_LAYER = {"G": "gradients", "U": "updates"}  # stages whose tensors are also drawn by layer
FORWARD = {
    "title": "Modules",
    "what": "what goes into a module and what comes out",
    "alone": "what it computes alone, fed with the reference's values",
    "heads": ("Input", "Output", "Alone"),
}
BACKWARD = {
    "title": "Gradients at modules",
    "what": "the gradient that arrives at a module and of those it makes, of its input and its parameters",
    "alone": "those it makes alone, of the reference's values and gradients",
    "heads": ("Arriving", "Made", "Alone"),
}
"""Words of the trees of modules."""
OPEN_STAGES = 30  # of more, those that pass are folded
OPEN_FINDINGS = 12  # longer lists start folded


def render(reports: Sequence[Report], out: Path, *, title: str = "msmigrate") -> Path:
    """Writes the page.

    Args:
        reports: in the order in which they appear.
        out: file to write; its directory is made.
        title: of the page.

    Returns:
        The absolute path of the page.

    Raises:
        UserError: nothing to show, or `out` cannot be written.
    """
    if not reports:
        raise UserError(f"{out}: no reports to put on the page")
    worst = max(report.exit_code for report in reports)
    page = (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            outcome=OUTCOMES[worst],
            sections=[_section(index, report) for index, report in enumerate(reports)],
            plots=[_plot(index, group, curves) for index, (group, curves) in enumerate(_groups(reports).items())],
        )
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    return out.resolve()


def environment() -> Environment:
    """The templates of all pages."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _groups(reports: Sequence[Report]) -> dict[str, list[Curve]]:
    """Curves by plot: those the user asked for (command `curves`) first, then those of reports that show anything new.

    Comparisons of one run with several others all bring its curve along; it is drawn once.
    """
    groups: dict[str, list[Curve]] = defaultdict(list)
    drawn: list[tuple[list[float], list[float]]] = []
    for report in sorted(reports, key=lambda report: report.command != CURVES):
        new = [c for c in report.curves if report.command == CURVES or (c.x, c.y) not in drawn]
        for curve in new:
            groups[curve.group].append(curve)
        drawn += [(curve.x, curve.y) for curve in new]
    return groups


def _plot(index: int, group: str, curves: Sequence[Curve]) -> dict[str, Any]:
    apart = differences(curves)
    rows = []
    for number, curve in enumerate(curves):
        finite = [y for y in curve.y if math.isfinite(y)]
        gap = max(apart[number - 1].y, default=None) if number else None
        rows.append(
            {
                "swatch": swatch(number),
                "name": curve.name,
                "steps": len(curve.y),
                "first": figure(finite[0]) if finite else "",
                "last": figure(finite[-1]) if finite else "",
                "gap": "reference" if not number else "no common steps" if gap is None else f"{gap:.2e}",
            }
        )
    # The reference keeps its place (empty) so that the other curves keep their colours.
    shifted = [Curve(curves[0].name, [], [], group), *apart]
    title = f"relative difference to {curves[0].name}"
    return {
        "id": f"plot-{index}",
        "group": group,
        "rows": rows,
        "chart": line_chart(curves, x_label="step", y_label=group),
        "identical": bool(apart) and not any(y for curve in apart for y in curve.y),
        "differences": [
            ("log", line_chart(shifted, x_label="step", y_label=title, log=True)),
            ("linear", line_chart(shifted, x_label="step", y_label=title)),
        ]
        if apart
        else [],
        "reference": curves[0].name,
    }


def _tree(words: Mapping[str, Any], nodes: Sequence[Node]) -> dict[str, Any]:
    return {**words, "nodes": nodes, "columns": [has_column(nodes, column) for column in range(3)]}


def _section(index: int, report: Report) -> dict[str, Any]:
    facts = dict(report.facts)
    tensors = facts.pop("tensors", None)
    tensors = tensors if isinstance(tensors, list) else []
    trees = [
        _tree(FORWARD, module_tree({"modules": facts.pop("modules", None), "tensors": tensors})),
        _tree(BACKWARD, module_tree({"modules": facts.pop("modules backward", None)})),
    ]
    counts = {severity.value: sum(f.severity is severity for f in report.findings) for severity in Severity}
    stages = [
        {
            "name": stage.name,
            "verdict": stage.verdict.value,
            "compared": "" if stage.compared is None else f"{stage.compared:,}",
            "message": stage.message,
            "figures": [(name, figure(value)) for name, value in stage.figures.items()],
        }
        for stage in report.stages
    ]
    odd = [stage for stage in stages if stage["verdict"] in (Verdict.FAIL.value, Verdict.COULD_NOT_RUN.value)]
    shown = stages if len(stages) <= OPEN_STAGES else odd
    return {
        "id": f"report-{index}",
        "has_body": bool(report.stages or report.findings or facts),
        "command": report.command,
        "subject": report.subject,
        "outcome": OUTCOMES[report.exit_code],
        "stages": stages,
        "shown": shown,
        "folded": [stage for stage in stages if stage not in shown],
        "tally": _tally(report),
        "counts": [(name, number) for name, number in counts.items() if number],
        "findings": _findings(report.findings),
        "trees": [tree for tree in trees if tree["nodes"]],
        "layers": _by_layer(tensors),
        "tensors": [
            {**_tensor(row), "module": row.get("module", "") if len(compared_modules(tensors)) > 1 else ""}
            for row in tensors
            if isinstance(row, Mapping)
        ],
        "facts": list(_flat(facts)),
    }


def _tally(report: Report) -> str:
    """How many stages ended how, such as `7 passed, 5 skipped`; empty without stages."""
    counts = Counter(stage.verdict for stage in report.stages)
    return ", ".join(f"{counts[verdict]} {word}" for verdict, word in VERDICTS.items() if counts[verdict])


def _by_layer(tensors: Sequence[Any]) -> list[tuple[str, Any]]:
    """(title, chart) of the stages of `BY_LAYER` that were compared."""
    found = []
    by = "module" if len(compared_modules(tensors)) > 1 else "layer"
    for stage, what in BY_LAYER.items():
        rows = [row for row in tensors if isinstance(row, Mapping) and row.get("stage") == stage]
        if (chart := layer_chart(rows, "relative difference", by)) is not None:
            found.append((f"{what.capitalize()} by {by}", chart))
    return found


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    order = {severity: index for index, severity in enumerate(Severity)}
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in sorted(findings, key=lambda f: (order[f.severity], f.code, f.file or "", f.line or 0)):
        groups[finding.code].append(finding)
    result = []
    for code, members in groups.items():
        fixes = list(dict.fromkeys(member.fix for member in members))
        result.append(
            {
                "code": code,
                "severity": members[0].severity.value,
                "why": members[0].why,
                "fix": fixes[0] if len(fixes) == 1 else None,
                "open": len(members) <= OPEN_FINDINGS and members[0].severity is not Severity.NOTE,
                "rows": [(location(member), member.message, member.fix) for member in members],
            }
        )
    return result


def _tensor(row: Mapping[str, Any]) -> dict[str, Any]:
    """A compared tensor, with its relative difference as a bar on a scale of 1e-9 to 1."""
    value = row.get("relative", 0)
    size = float(value) if isinstance(value, int | float | str) else math.nan
    bar = 100.0 if not math.isfinite(size) else 0.0 if size <= 0 else max(0.0, min(1.0, 1 + math.log10(size) / 9)) * 100
    index = "".join(f"[{i}]" for i in row.get("worst", []))
    return {
        "stage": row.get("stage", ""),
        "name": row.get("name", ""),
        "elements": figure(row.get("elements", "")),
        "relative": "0" if size == 0 else f"{size:.2e}",
        "bar": f"{bar:.1f}",
        "differs": bool(row.get("differs")),
        "worst": f"{index} {_nine(row.get('reference'))} | {_nine(row.get('candidate'))}",
    }


def _nine(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Any:
    """(name, text) pairs; nested mappings become dotted names, long lists are cut with a note."""
    for name, item in value.items():
        path = f"{prefix}{name}"
        if isinstance(item, Mapping):
            yield from _flat(item, f"{path}.")
        elif isinstance(item, list):
            shown = ", ".join(figure(entry) for entry in item[:50])
            yield path, shown + (f", ... ({len(item)} in all)" if len(item) > 50 else "")
        else:
            yield path, figure(item)
