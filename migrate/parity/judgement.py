"""From comparisons to the verdict of a stage: its figures, findings and rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from migrate.captures.compare import Difference
from migrate.parity.codes import finding
from migrate.parity.tolerances import Limit
from migrate.report import Finding, Stage, Verdict

TITLES = {"W": "W weights", "F": "F activations", "L": "L loss", "G": "G gradients", "U": "U updates"}
FIRST = {"F": "first divergence: ", "G": "nearest to the loss: "}
LISTED = 20  # findings per stage; all tensors stand in the facts
Figures = dict[str, float | int | str]


@dataclass
class Judgement:
    """A stage with what led to it."""

    stage: Stage
    findings: list[Finding] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One per tensor, for the facts."""


def could_not_run(stage: str, reason: str) -> Judgement:
    """The verdict on a stage that one side did not get to."""
    stopped = Stage(TITLES[stage], Verdict.COULD_NOT_RUN, reason)
    return Judgement(stopped, [finding("P001", f"{TITLES[stage]}: {reason}")])


def conclude(stage: str, results: list[Difference], limits: list[Limit]) -> Judgement:
    """What comparisons within limits say about a stage; the first difference is the guilty one."""
    judged = [(result, limit, is_wrong(stage, result, limit)) for result, limit in zip(results, limits, strict=True)]
    wrong = [(result, limit) for result, limit, is_wrong in judged if is_wrong]
    rows = [row_of(stage, *item) for item in judged]
    worst = max(results, key=lambda result: result.relative)
    lowest = min(limit.relative for limit in limits)
    figures: Figures = {
        "elements": sum(result.elements for result in results),
        "worst relative": plain(worst.relative),
        "limit": lowest,
        "worst tensor": worst.name,
    }
    if raised := sum(limit.relative > lowest for limit in limits):
        figures["limits raised to own rounding"] = raised
    if wrong:
        message = f"{len(wrong)} of {len(results)} tensors differ, first {wrong[0][0].name}"
        stopped = Stage(TITLES[stage], Verdict.FAIL, message, len(results), figures)
        return Judgement(stopped, _describe(stage, wrong), rows)
    if all(result.zeros for result in results):
        found = finding("P005", f"{TITLES[stage]}: all {len(results)} tensors are zero on both sides")
        return Judgement(Stage(TITLES[stage], Verdict.FAIL, found.message, 0, figures), [found], rows)
    message = f"{len(results)} tensors {'equal bit for bit' if stage == 'W' else 'agree'}"
    return Judgement(Stage(TITLES[stage], Verdict.PASS, message, len(results), figures), [], rows)


def is_wrong(stage: str, result: Difference, limit: Limit) -> bool:
    """Whether a tensor differs."""
    if result.problem is not None:
        return True
    if stage == "W":
        return result.differing > 0
    return not (result.relative <= limit.relative and result.element <= limit.element)


def _describe(stage: str, wrong: list[tuple[Difference, Limit]]) -> list[Finding]:
    findings = []
    for index, (result, limit) in enumerate(wrong[: 1 if stage == "F" else LISTED]):
        name = result.name
        if result.problem is not None:
            code = "P004" if result.elements else "P003"
            findings.append(finding(code, f"{TITLES[stage]}: {name}: {result.problem}", tensor=name))
            continue
        first = FIRST.get(stage, "") if index == 0 else ""
        code = {"W": "P101", "F": "P201", "L": "P301", "G": "P401", "U": "P601"}[stage]
        what = what_differs(stage, result, limit)
        findings.append(finding(code, f"{first}{name}: {what}; {result.where()}", tensor=name))
    if stage == "F" and len(wrong) > 1:
        last = wrong[-1][0]
        message = f"{len(wrong) - 1} later outputs differ too, up to {last.name} (relative {last.relative:.3g})"
        findings.append(finding("P202", message, tensor=last.name))
    return findings


def what_differs(stage: str, result: Difference, limit: Limit) -> str:
    """How a tensor differs, in words."""
    if stage == "W":
        return f"{result.differing} of {result.elements} elements differ"
    if result.silent:
        return "the candidate is zero everywhere, so nothing reaches it"
    own = "" if limit.own is None else f" (PyTorch's own rounding: {limit.own:.2g})"
    if result.relative > limit.relative:
        return f"relative difference {result.relative:.3g}, limit {limit.relative:.3g}{own}"
    return f"one element is off by {result.element:.3g} of the tensor's RMS, limit {limit.element:.3g}{own}"


def row_of(stage: str, result: Difference, limit: Limit, wrong: bool) -> dict[str, Any]:
    """A comparison for the facts."""
    return {
        "stage": stage,
        "name": result.name,
        "elements": result.elements,
        "relative": plain(result.relative),
        "element": plain(result.element),
        "limit": limit.relative,
        "differs": wrong,
        "worst": list(result.worst),
        "reference": plain(result.reference),
        "candidate": plain(result.candidate),
    }


def plain(value: float) -> float | str:
    """The value, or its name where JSON has no number for it."""
    return value if math.isfinite(value) else str(value)
