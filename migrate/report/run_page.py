"""One run, or several side by side, as an HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.report.chart import differences, line_chart, swatch
from migrate.report.html import environment
from migrate.report.model import Curve, Report
from migrate.report.run_figures import NAMES, PLOTS, Plot, curve, flat, happened, totals
from migrate.run_record import RunRecord

EVENTS = 200
"""Most events that are listed; of more, the last ones."""
SOURCE = "eval_loss/"
SAMPLED = 5
"""Evaluations whose samples are shown: the last ones."""


def write_run_page(runs: Mapping[str, RunRecord], out: Path, *, title: str) -> Path:
    """Writes the page.

    Args:
        runs: by name; the first one is the reference of differences.
        out: file to write; its directory is made.
        title: of the page.

    Returns:
        The absolute path of the page.

    Raises:
        UserError: `out` cannot be written.
    """
    from migrate.trouble.register import examine

    troubles = {name: examine(run) for name, run in runs.items()}
    page = (
        environment()
        .get_template("run.html.j2")
        .render(
            title=title if title != "msmigrate" else " and ".join(runs) if len(runs) < 4 else f"{len(runs)} runs",
            names=list(runs),
            totals=_side_by_side([totals(run) for run in runs.values()]),
            troubles=[(name, _trouble(report)) for name, report in troubles.items()],
            plots=[plot for one in PLOTS if (plot := _plot(one, runs)) is not None] + _sources(runs),
            events=[(name, happened(run)[-EVENTS:], len(happened(run))) for name, run in runs.items()],
            evaluations=[(name, _evaluations(run)) for name, run in runs.items() if run.evaluations],
            ranks=[(name, _ranks(run)) for name, run in runs.items() if len(run.ranks) > 1],
            checkpoints=[(name, run.checkpoints) for name, run in runs.items() if run.checkpoints],
            settings=_settings(runs),
        )
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    return out.resolve()


def _side_by_side(columns: list[dict[str, str]]) -> list[tuple[str, list[str], bool]]:
    """(name, value of each run, whether they differ), every name once."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [(name, [column.get(name, "") for column in columns]) for name in names]
    return [(name, values, len(set(values)) > 1) for name, values in rows]


def _settings(runs: Mapping[str, RunRecord]) -> list[tuple[str, list[str], bool]]:
    columns = []
    for run in runs.values():
        versions = {f"version of {name}": version for name, version in run.versions.items()}
        columns.append({**versions, **flat(dict(run.config))})
    return _side_by_side(columns)


def _plot(plot: Plot, runs: Mapping[str, RunRecord]) -> dict[str, Any] | None:
    curves = [one for name, run in runs.items() if (one := curve(run, name, plot.key)).x]
    if not curves or (plot.log and not any(y > 0 for one in curves for y in one.y)):
        return None
    if plot.key == "loss_scale" and all(y == 1 for one in curves for y in one.y):
        return None
    marks: list[tuple[float, str]] = []
    shown = curves
    if len(runs) == 1:
        (run,) = runs.values()
        if plot.also is not None and (second := curve(run, NAMES.get(plot.also, plot.also), plot.also)).x:
            shown = [Curve("measured", curves[0].x, curves[0].y, plot.key), second]
        marks = [(float(one["step"]), f"{one['what']} after step {one['step']}") for one in happened(run)
                 if one["what"] in ("skip", "resume", "restart", "failure", "target")]  # fmt: skip
    if len(shown) == 1:  # the broad pale band of a first curve is for what others are compared with
        shown = [Curve("", [], [], plot.key), *shown]
    label = f"{plot.title.lower()}, {plot.unit}" if plot.unit else plot.title.lower()
    apart: list[Curve] = []
    if plot.key in ("loss", "eval_loss") and len(curves) > 1:
        apart = [Curve(curves[0].name, [], [], plot.key), *differences(_whole(plot.key, runs))]
    return {
        "title": plot.title,
        "chart": line_chart(shown, x_label="step", y_label=label, log=plot.log, marks=marks),
        "legend": [(swatch(index), one.name) for index, one in enumerate(shown)] if shown[0].x else [],
        "marked": bool(marks),
        "apart": line_chart(apart, x_label="step", y_label="relative difference", log=True)
        if any(y for one in apart for y in one.y)
        else None,
        "equal": bool(apart) and not any(y for one in apart for y in one.y),
        "reference": curves[0].name,
    }


def _sources(runs: Mapping[str, RunRecord]) -> list[dict[str, Any]]:
    """Validation loss of each source of a blend."""
    shown = []
    for name, run in runs.items():
        keys = dict.fromkeys(key for one in run.evaluations for key in one if key.startswith(SOURCE))
        for key in keys:
            source = key.removeprefix(SOURCE)
            shown.append(curve(run, source if len(runs) == 1 else f"{name}: {source}", key))
    if not shown:
        return []
    return [
        {
            "title": "Validation loss by source",
            "chart": line_chart(shown, x_label="step", y_label="validation loss, nats per token"),
            "legend": [(swatch(index), one.name) for index, one in enumerate(shown)],
            "marked": False, "apart": None, "equal": False, "reference": "",
        }
    ]  # fmt: skip


def _whole(key: str, runs: Mapping[str, RunRecord]) -> list[Curve]:
    """Without thinning, as steps have to meet."""
    found = []
    for name, run in runs.items():
        steps, values = run.series(key)
        found.append(Curve(name, [float(step) for step in steps], values, key))
    return found


def _trouble(report: Report) -> dict[str, Any]:
    rows = []
    for code in dict.fromkeys(finding.code for finding in report.findings):
        members = [finding for finding in report.findings if finding.code == code]
        rule = report.rules[code]
        rows.append(
            {
                "code": code, "severity": rule.severity.value, "symptom": rule.title, "cause": rule.why,
                "remedy": rule.fix, "evidence": [one.message.removeprefix(f"{rule.title}: ") for one in members],
            }
        )  # fmt: skip
    order = ["error", "warning", "note"]
    rows.sort(key=lambda row: order.index(str(row["severity"])))
    return {"rows": rows, "asked": report.stages[0].compared, "blind": report.facts.get("not looked for", [])}


def _evaluations(run: RunRecord) -> list[dict[str, Any]]:
    sampled = {one["step"] for one in [e for e in run.evaluations if e.get("samples")][-SAMPLED:]}
    return [
        {
            "step": f"{one['step']:,}",
            "loss": f"{one['eval_loss']:.4f}",
            "perplexity": f"{one['eval_perplexity']:.2f}" if one.get("eval_perplexity") is not None else "",
            "accuracy": f"{one['eval_accuracy']:.2%}" if one.get("eval_accuracy") is not None else "",
            "tokens": f"{one['eval_tokens']:,}",
            "samples": one.get("samples", []) if one["step"] in sampled else [],
        }
        for one in run.evaluations
    ]


def _ranks(run: RunRecord) -> list[dict[str, Any]]:
    slowest = max(float(one["compute_s"]) for one in run.ranks)
    return [
        {
            "rank": one["rank"],
            "compute": f"{one['compute_s']:.4f}",
            "bar": f"{100 * float(one['compute_s']) / slowest if slowest else 0:.1f}",
            "data": f"{one['data_s']:.4f}",
            "memory": f"{one['memory_peak_gb']:.2f}",
        }
        for one in run.ranks
    ]
