"""`msmigrate weights diff`: two checkpoints of any containers and layouts, parameter by parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from migrate.progress import Tracker, quiet
from migrate.report import Finding, Report, Severity, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.containers.states import split_state
from migrate.weights.conversion import DEFAULT_MEMORY_BUDGET, compare_replicas
from migrate.weights.opening import Hints, home_of, open_checkpoint
from migrate.weights.recorded import of_other_size
from migrate.weights.slow_path import Atoms, as_numbers
from migrate.weights.tensors import Checkpoint


def diff(
    first: Path,
    second: Path,
    *,
    first_hints: Hints | None = None,
    second_hints: Hints | None = None,
    track: Tracker = quiet,
) -> Report:
    """Compares every parameter of two checkpoints of one model; padding, cuts, fusing and file names do not count.

    `facts["parameters"]` lists those that differ: dtypes, how many elements, and the largest difference.

    Args:
        first: one checkpoint.
        second: the other.
        first_hints: what the first path does not say by itself.
        second_hints: the same for the second.
        track: progress in parameters.

    Raises:
        UserError: one of them is no checkpoint, or malformed.
    """
    report = Report("weights diff", f"{first} {second}")
    for path, hints in ((first, first_hints), (second, second_hints)):
        damaged = of_other_size(home_of(path), hints.container if hints else None)
        damaged = [found for found in damaged if found.severity is Severity.ERROR]
        if damaged:
            report.findings += damaged
            report.stages.append(Stage("headers", Verdict.FAIL, f"{path}: {len(damaged)} files are not as written"))
    if report.findings:
        report.stages.append(Stage("parameters", Verdict.SKIPPED, "files are damaged"))
        return report
    sides = [open_checkpoint(first, first_hints), open_checkpoint(second, second_hints)]
    for side in sides:
        wrong = [found for found in side.findings if found.severity is Severity.ERROR]
        report.findings += wrong
        if wrong:
            report.stages.append(Stage("headers", Verdict.FAIL, f"{side.directory}: {len(wrong)} errors"))
    if report.findings:
        report.stages.append(Stage("parameters", Verdict.SKIPPED, "the headers are wrong"))
        return report
    for side in sides:  # below, the first copy stands for all
        compare_replicas(report, side, DEFAULT_MEMORY_BUDGET, track)
    report.stages.append(Stage("names", *_names(report, *sides)))
    rows: list[dict[str, Any]] = []
    left, right = (Atoms(side) for side in sides)
    common = [atom for atom in sides[0].atoms if atom in sides[1].atoms and atom in left and atom in right]
    with track("comparing", len(common)) as advance:
        for atom in common:
            row = _compared(atom, left, right)
            advance(1)
            if row is not None:
                rows.append(row)
                report.findings.append(_finding(row))
    message = f"{len(rows)} of {len(common)} parameters differ"
    report.stages.append(Stage("parameters", Verdict.FAIL if rows else Verdict.PASS, message, len(common)))
    report.facts.update(
        first=f"{sides[0].container}, {len(sides[0].tensors)} tensors",
        second=f"{sides[1].container}, {len(sides[1].tensors)} tensors",
        parameters=rows,
    )
    return report


def _names(report: Report, first: Checkpoint, second: Checkpoint) -> tuple[Verdict, str]:
    """Parameters that one side lacks. Optimizer state that a side has none of is no difference between the models."""
    both = set(first.extra.get("states", ())) & set(second.extra.get("states", ()))
    ours, theirs = (
        {
            name
            for name in side.atoms
            if name not in side.extra.get("counters", {}) and split_state(name)[0] in {"", *both}
        }
        for side in (first, second)
    )
    report.findings += [finding("W001", f"missing in {second.directory}", tensor=n) for n in sorted(ours - theirs)]
    report.findings += [finding("W002", f"only in {second.directory}", tensor=n) for n in sorted(theirs - ours)]
    message = f"{len(ours - theirs)} only in the first, {len(theirs - ours)} only in the second"
    for side in (first, second):
        if alone := sorted(set(side.extra.get("states", ())) - both):
            message += f"; {', '.join(alone)} of {side.directory.name} not compared"
    return Verdict.PASS if ours == theirs else Verdict.FAIL, message


def _compared(atom: str, left: Atoms, right: Atoms) -> dict[str, Any] | None:
    """What differs, or None. Elements of two types are compared as numbers."""
    dtypes = left.dtype(atom), right.dtype(atom)
    a, b = left.bytes(atom), right.bytes(atom)
    if a.shape[:-1] != b.shape[:-1]:
        shapes = list(a.shape[:-1]), list(b.shape[:-1])
        return {"name": atom, "dtype": " and ".join(dtypes), "unequal": None, "of": None, "shapes": shapes}
    if dtypes[0] == dtypes[1] and np.array_equal(a, b):
        return None
    x, y = as_numbers(a, dtypes[0]), as_numbers(b, dtypes[1])
    bits = (a != b).any(axis=-1) if dtypes[0] == dtypes[1] else (x != y) & ~(np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):  # Inf - Inf
        distance = np.abs(x - y)
    largest = float(np.nanmax(distance)) if np.isfinite(distance).any() else float("nan")
    first = [int(i) for i in np.argwhere(bits)[0]] if bits.any() else None
    dtype = dtypes[0] if dtypes[0] == dtypes[1] else " and ".join(dtypes)
    return {
        "name": atom,
        "dtype": dtype,
        "unequal": int(bits.sum()),
        "of": int(bits.size),
        "largest": largest,
        "first": first,
    }


def _finding(row: dict[str, Any]) -> Finding:
    if row["unequal"] is None:
        return finding("W003", f"shapes {row['shapes'][0]} and {row['shapes'][1]}", tensor=row["name"])
    if not row["unequal"]:
        return finding("W022", f"equal numbers, dtypes {row['dtype']}", tensor=row["name"])
    message = (
        f"{row['unequal']} of {row['of']} elements differ, at most by {row['largest']:.3g}, from {row['first']} on"
    )
    return finding("W013", f"{message} ({row['dtype']})", tensor=row["name"])
