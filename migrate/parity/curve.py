"""Two training curves, step by step. The tolerance grows with the step, since rounding differences feed back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from mappings.errors import UserError
from migrate.parity.codes import finding
from migrate.report import Curve, Report, Stage, Verdict, band
from migrate.report.curves import read_curve

STAGE = "C curve"


def curve(
    reference: Path,
    candidate: Path,
    *,
    first_rtol: float,
    last_rtol: float,
    steps: int | None = None,
    key: str = "loss",
    noise: Sequence[Path] = (),
    names: tuple[str, str] | None = None,
    group: str | None = None,
) -> Report:
    """Compares one field of two JSONL files with a record per step.

    Without `noise` the relative tolerance grows geometrically: `first_rtol * (last_rtol / first_rtol) ** (i / (n - 1))`
    at the i-th of n steps, counted from 0. Two tolerances of 0 ask for equality in every digit. Records without `key`
    (e.g. of an evaluation) are left out and counted in the facts.

    Args:
        reference: what is right.
        candidate: what is judged.
        first_rtol: relative tolerance at the first step.
        last_rtol: relative tolerance at the last step.
        noise: repetitions of the reference that differ by rounding; the tolerance is then a multiple of their distance
            (`migrate.report.band`), and at least `first_rtol`.
        steps: compare the first so many steps only; both files must have them.
        key: field to compare.
        names: of the two curves, for the plot; the directories they lie in, where those differ, by default.
        group: plot they are drawn in; `key` by default.

    Raises:
        UserError: a file cannot be read, holds no such records, or a step twice; the tolerances are neither positive
            numbers nor both 0.
    """
    if not (0 < first_rtol < math.inf and 0 < last_rtol < math.inf) and not first_rtol == last_rtol == 0:
        raise UserError(f"tolerances must be positive numbers, or both 0, found {first_rtol} and {last_rtol}")
    repetitions = [read_curve(path, key)[0] for path in noise]
    left, left_others = read_curve(reference, key)
    right, right_others = read_curve(candidate, key)
    report = Report("parity curve", f"{reference} | {candidate}")
    for name, values in zip(names or _names(reference, candidate), (left, right), strict=True):
        plotted = [step for step in sorted(values) if math.isfinite(values[step])]
        report.curves.append(
            Curve(name, [float(step) for step in plotted], [values[step] for step in plotted], group or key)
        )
    report.facts = {
        "key": key,
        "reference_records_without_key": left_others,
        "candidate_records_without_key": right_others,
    }
    chosen = [sorted(values)[:steps] for values in (left, right)]
    if chosen[0] != chosen[1] or (steps is not None and len(chosen[0]) < steps):
        _unequal_steps(report, chosen, steps)
        return report
    allowed = [tolerance(index, len(chosen[0]), first_rtol, last_rtol) for index in range(len(chosen[0]))]
    if repetitions:
        for path, values in zip(noise, repetitions, strict=True):
            bad = [step for step in chosen[0] if not math.isfinite(values.get(step, math.nan))]
            if bad or not all(math.isfinite(left[step]) and left[step] for step in chosen[0]):
                raise UserError(
                    f"{path}: no repetition of {reference}: step {(bad or chosen[0])[0]} has no finite {key}"
                )
        allowed = band.limits(left, repetitions, chosen[0], first_rtol)
        report.facts["repetitions"] = len(repetitions)
    compare_steps(report, left, right, chosen[0], allowed, key)
    return report


def _names(reference: Path, candidate: Path) -> tuple[str, str]:
    left, right = (path.resolve().parent.name for path in (reference, candidate))
    return (left, right) if left != right else ("reference", "candidate")


def tolerance(index: int, count: int, first: float, last: float) -> float:
    """Relative tolerance at position `index` of `count` steps: geometric from `first` to `last`."""
    return first if count < 2 or not first else float(first * (last / first) ** (index / (count - 1)))


def _unequal_steps(report: Report, chosen: list[list[int]], steps: int | None) -> None:
    left, right = map(set, chosen)
    parts = [f"{name} has {len(found)} steps" for name, found in (("reference", left), ("candidate", right))]
    if only := sorted(left ^ right):
        parts.append(f"only one of them has step {', '.join(map(str, only[:5]))}{' ...' if len(only) > 5 else ''}")
    if steps is not None:
        parts.append(f"{steps} were asked for")
    message = "; ".join(parts)
    report.findings.append(finding("P502", message))
    report.stages.append(Stage(STAGE, Verdict.FAIL, message, 0))


def compare_steps(
    report: Report,
    left: Mapping[int, float],
    right: Mapping[int, float],
    steps: Sequence[int],
    allowed: Sequence[float],
    key: str,
    stage: str = STAGE,
) -> None:
    """Adds the verdict on two curves to a report.

    Args:
        report: gets the stage and its findings.
        left: value by step of the reference.
        right: of the candidate.
        steps: to compare.
        allowed: largest relative difference at each of them.
        key: what the values are.
        stage: name of the verdict.
    """
    ratios: list[float] = []
    failures = []
    for step, limit in zip(steps, allowed, strict=True):
        difference = relative(left[step], right[step])
        ratios.append(difference)
        if not difference <= limit:
            values = f"{key} {left[step]!r} and {right[step]!r}"
            failures.append(f"step {step}: {values}, relative {difference:.3g}, limit {limit:.3g}")
    shown = [ratio if math.isfinite(ratio) else "inf" for ratio in (ratios[0], ratios[-1], max(ratios))]
    figures: dict[str, float | int | str] = {
        "first relative": shown[0],
        "last relative": shown[1],
        "worst relative": shown[2],
        "first limit": allowed[0],
        "last limit": allowed[-1],
    }
    if failures:
        report.findings.append(
            finding("P501", f"{len(failures)} of {len(steps)} steps differ, the first is {failures[0]}")
        )
        report.stages.append(Stage(stage, Verdict.FAIL, failures[0], len(steps), figures))
    else:
        report.stages.append(Stage(stage, Verdict.PASS, f"{len(steps)} steps agree", len(steps), figures))


def relative(reference: float, candidate: float) -> float:
    """Difference over the size of the reference; infinite where either is not finite or the reference alone is 0."""
    if not (math.isfinite(reference) and math.isfinite(candidate)):
        return math.inf
    if reference == candidate:
        return 0.0
    return abs(candidate - reference) / abs(reference) if reference else math.inf
