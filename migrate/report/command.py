"""`msmigrate report`: reports, runs and curves on one page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from mappings.errors import UserError
from migrate.report.curves import read_curve
from migrate.report.html import CURVES, render
from migrate.report.model import Curve, Report
from migrate.report.run_page import write_run_page
from migrate.run_record import CONFIG, METRICS, RunRecord

KEY = "loss"


def report(inputs: Sequence[str | Path], out: Path, title: str = "msmigrate") -> Path:
    """Puts reports and loss curves on one HTML page; run directories alone become a page about these runs.

    Args:
        inputs: each a report JSON, a JSONL file with a `loss` by step, or a run directory (its `metrics.jsonl`).
            `NAME=PATH` names a curve, `PLOT:NAME=PATH` also chooses the plot it is drawn in. The first curve of a plot
            is the reference of its difference plot.
        out: page to write.
        title: of the page.

    Returns:
        Absolute path of the page.

    Raises:
        UserError: an input is missing or no such file, or two curves of a plot have one name.
    """
    if (runs := _runs(inputs)) is not None:
        return write_run_page(runs, out, title=title)
    reports: list[Report] = []
    curves: list[Curve] = []
    for item in inputs:
        path, name, plot = _parse(str(item))
        if path.is_dir() or path.suffix == ".jsonl":
            curves.append(_curve(path, name, plot))
        elif name is not None:
            raise UserError(f"{item}: only curves are named; {path} is no .jsonl file and no run directory")
        else:
            reports.append(Report.from_json(path))
    _check_names(curves)
    if curves:
        reports.append(Report(CURVES, f"{len(curves)} curves", curves=curves))
    return render(reports, out, title=title)


def _runs(inputs: Sequence[str | Path]) -> dict[str, RunRecord] | None:
    """The runs by name, if there is nothing else."""
    found: dict[str, RunRecord] = {}
    for item in inputs:
        path, name, plot = _parse(str(item))
        if not (path / METRICS).is_file() or not (path / CONFIG).is_file() or plot != KEY:
            return None
        run = RunRecord.read(path)
        if (name or run.name) in found:
            raise UserError(f"{item}: two runs are called {name or run.name}; name them, e.g. second={path}")
        found[name or run.name] = run
    return found or None


def _parse(text: str) -> tuple[Path, str | None, str]:
    """(path, name, plot) of `[[PLOT:]NAME=]PATH`.

    Names and paths may hold "=" themselves (`tp=2=runs/tp2`): the first split that leaves an existing path counts.
    """
    if Path(text).exists():
        return Path(text), None, KEY
    name, path = "", text
    while "=" in path:
        head, _, path = path.partition("=")
        name = f"{name}={head}" if name else head
        if Path(path).exists():
            plot, colon, short = name.partition(":")
            return (Path(path), short, plot) if colon else (Path(path), name, KEY)
    raise UserError(f"{path}: no such file or directory")


def _curve(path: Path, name: str | None, plot: str) -> Curve:
    file = path / METRICS if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no {METRICS} in it, so this is no run directory")
    values, _ = read_curve(file, KEY)
    steps = sorted(step for step, value in values.items() if math.isfinite(value))
    if len(steps) < len(values):
        raise UserError(f"{file}: {len(values) - len(steps)} steps have a loss that is NaN or infinite")
    return Curve(name or file.parent.resolve().name, [float(s) for s in steps], [values[s] for s in steps], plot)


def _check_names(curves: Sequence[Curve]) -> None:
    seen: set[tuple[str, str]] = set()
    for curve in curves:
        if (curve.group, curve.name) in seen:
            raise UserError(f"two curves are named {curve.name!r}; name them with NAME=PATH")
        seen.add((curve.group, curve.name))
