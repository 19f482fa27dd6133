"""The verdict of each stage from two captures. What is expected comes from the family's facts, never from a capture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mappings.families import Family
from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.codes import finding
from migrate.parity.inputs import valid_labels
from migrate.report import Finding, Stage, Verdict

TITLES = {"W": "W weights", "F": "F activations", "L": "L loss", "G": "G gradients", "U": "U updates"}
ORDER = tuple(TITLES)
FIRST = {"F": "first divergence: ", "G": "nearest to the loss: "}
LISTED = 20  # findings per stage; all tensors stand in the facts
LOGITS = "logits"
Figures = dict[str, float | int | str]


@dataclass(frozen=True)
class Tolerances:
    """Largest accepted differences, fp32. Measured on Llama and Qwen2 of 2 to 24 layers, width 48 to 128, CPU.

    Models with sharp attention round worse (measured 3e-5 with 16 layers of width 512 and scores in the hundreds).
    Where a tensor exceeds its bound, PyTorch runs again in fp64, and the bound becomes `noise` times the distance
    between PyTorch's own two results if that is larger; never more than `most` times the bound here.

    `activations` and `gradients` bound the norm of a tensor's difference relative to the tensor's norm. A single wrong
    element hides in a large norm, so the largest difference is bounded too: relative to the tensor's root mean square.
    """

    activations: float = 1e-5
    """Measured at most 1.2e-6; planted faults give 1e-4 and more."""
    loss: float = 2e-6
    """Measured at most 4e-7: both sides add about 80 fp32 terms of size 6 in another order."""
    gradients: float = 1e-4
    """Measured at most 2.2e-6; small gradients of the first layers carry the rounding of all later ones."""
    updates: float = 1e-4
    """Of what a parameter changed by in one step. Measured at most 6.3e-6 (the gradient norm); planted faults give 4e-4
    and more."""
    element: float = 100.0
    """Bound of a single element, in units of the norm's bound. Measured at most 35 times a tensor's own figure."""
    noise: float = 4.0
    """Two fp32 results lie up to twice as far apart as one of them from the truth, times two for luck of the order."""
    most: float = 100.0


@dataclass
class Judgement:
    """A stage with what led to it."""

    stage: Stage
    findings: list[Finding] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One per tensor, for the facts."""


def expected_modules(family: Family, config: Mapping[str, Any]) -> list[str]:
    """Modules whose outputs are compared: all that hold parameters or contain such, below `model`, by name.

    The head is compared through the logits, since a tied model has no head of its own.
    """
    modules: dict[str, None] = {}
    for parameter in family.parameters(config):
        parts = parameter.name.split(".")[:-1]
        if parts[0] != "model":
            continue
        for end in range(2, len(parts) + 1):
            modules[".".join(parts[:end])] = None
    modules.pop("model.layers", None)
    return list(modules)


def judge(
    stage: str,
    reference: Capture,
    candidate: Capture,
    batch: Mapping[str, np.ndarray],
    expected: Sequence[str],
    tolerances: Tolerances,
    noise: Capture | None = None,
) -> Judgement:
    """Compares one stage.

    Args:
        stage: one of `ORDER`.
        reference: capture of the PyTorch side.
        candidate: capture of the MindSpore side.
        batch: the inputs.
        expected: names both captures must hold, exactly (unused for L).
        tolerances: see there.
        noise: capture of the PyTorch side in fp64, to measure its rounding with.
    """
    for side, capture in (("PyTorch", reference), ("MindSpore", candidate)):
        if stage not in capture.stages:
            return could_not_run(stage, f"{side}: {capture.errors.get(stage, 'the process ended before this stage')}")
    if stage == "L":
        return _loss(reference, candidate, valid_labels(batch["labels"]), tolerances.loss)
    findings = _names(stage, reference, candidate, expected)
    if findings:
        return Judgement(Stage(TITLES[stage], Verdict.FAIL, findings[0].message, 0), findings)
    mask = batch["attention_mask"] if stage == "F" else None
    # The first difference in the order of computation is the guilty one: for F as the reference recorded it, for G from
    # the loss backwards.
    names = {"F": reference.names(stage), "G": list(reversed(expected))}.get(stage, list(expected))
    with reference.reader(stage) as left, candidate.reader(stage) as right:
        results = [compare(name, left(name), right(name), mask) for name in names]
    limits = _limits(stage, results, tolerances)
    if noise is not None and stage in noise.stages:
        with reference.reader(stage) as left, noise.reader(stage) as exact:
            own = [compare(name, left(name).astype(np.float64), exact(name), mask) for name in names]
        limits = [_raised(limit, rounding, tolerances) for limit, rounding in zip(limits, own, strict=True)]
    return _verdict(stage, results, limits)


def verdict_of(stage: str, results: list[Difference], tolerances: Tolerances) -> Judgement:
    """The verdict on comparisons made elsewhere; the first difference is the guilty one."""
    return _verdict(stage, results, _limits(stage, results, tolerances))


@dataclass(frozen=True)
class _Limit:
    relative: float
    element: float
    own: float | None = None
    """Relative rounding of the reference, where it was measured."""


def _limits(stage: str, results: Sequence[Difference], tolerances: Tolerances) -> list[_Limit]:
    relative = {
        "W": 0.0, "F": tolerances.activations, "L": tolerances.loss, "G": tolerances.gradients, "U": tolerances.updates,
    }[stage]  # fmt: skip
    return [_Limit(relative, relative * tolerances.element)] * len(results)


def _raised(limit: _Limit, own: Difference, tolerances: Tolerances) -> _Limit:
    if own.problem is not None:
        return limit

    def widen(bound: float, rounding: float) -> float:
        return max(bound, min(tolerances.noise * rounding, tolerances.most * bound))

    return _Limit(widen(limit.relative, own.relative), widen(limit.element, own.element), own.relative)


def could_not_run(stage: str, reason: str) -> Judgement:
    """The verdict on a stage that one side did not get to."""
    stopped = Stage(TITLES[stage], Verdict.COULD_NOT_RUN, reason)
    return Judgement(stopped, [finding("P001", f"{TITLES[stage]}: {reason}")])


def _names(stage: str, reference: Capture, candidate: Capture, expected: Sequence[str]) -> list[Finding]:
    if not expected:
        return [finding("P002", f"{TITLES[stage]}: no tensors are expected, so there is nothing to compare")]
    findings = []
    for side, capture in (("PyTorch", reference), ("MindSpore", candidate)):
        found = set(capture.names(stage))
        for what, names in (("lacks", set(expected) - found), ("has, unexpectedly,", found - set(expected))):
            if names:
                some = ", ".join(sorted(names)[:5])
                message = f"{TITLES[stage]}: {side} {what} {len(names)} of {len(expected)} tensors: {some}"
                findings.append(finding("P002", message, tensor=min(names)))
    return findings


def _verdict(stage: str, results: list[Difference], limits: list[_Limit]) -> Judgement:
    judged = [(result, limit, _is_wrong(stage, result, limit)) for result, limit in zip(results, limits, strict=True)]
    wrong = [(result, limit) for result, limit, is_wrong in judged if is_wrong]
    rows = [_row(stage, *item) for item in judged]
    worst = max(results, key=lambda result: result.relative)
    lowest = min(limit.relative for limit in limits)
    figures: Figures = {
        "elements": sum(result.elements for result in results),
        "worst relative": _plain(worst.relative),
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


def _is_wrong(stage: str, result: Difference, limit: _Limit) -> bool:
    if result.problem is not None:
        return True
    if stage == "W":
        return result.differing > 0
    return not (result.relative <= limit.relative and result.element <= limit.element)


def _describe(stage: str, wrong: list[tuple[Difference, _Limit]]) -> list[Finding]:
    findings = []
    for index, (result, limit) in enumerate(wrong[: 1 if stage == "F" else LISTED]):
        name = result.name
        if result.problem is not None:
            code = "P004" if result.elements else "P003"
            findings.append(finding(code, f"{TITLES[stage]}: {name}: {result.problem}", tensor=name))
            continue
        first = FIRST.get(stage, "") if index == 0 else ""
        code = {"W": "P101", "F": "P201", "L": "P301", "G": "P401", "U": "P601"}[stage]
        what = _what(stage, result, limit)
        findings.append(finding(code, f"{first}{name}: {what}; {result.where()}", tensor=name))
    if stage == "F" and len(wrong) > 1:
        last = wrong[-1][0]
        message = f"{len(wrong) - 1} later outputs differ too, up to {last.name} (relative {last.relative:.3g})"
        findings.append(finding("P202", message, tensor=last.name))
    return findings


def _what(stage: str, result: Difference, limit: _Limit) -> str:
    if stage == "W":
        return f"{result.differing} of {result.elements} elements differ"
    if result.silent:
        return "the candidate is zero everywhere, so nothing reaches it"
    own = "" if limit.own is None else f" (PyTorch's own rounding: {limit.own:.2g})"
    if result.relative > limit.relative:
        return f"relative difference {result.relative:.3g}, limit {limit.relative:.3g}{own}"
    return f"one element is off by {result.element:.3g} of the tensor's RMS, limit {limit.element:.3g}{own}"


def _row(stage: str, result: Difference, limit: _Limit, wrong: bool) -> dict[str, Any]:
    return {
        "stage": stage,
        "name": result.name,
        "elements": result.elements,
        "relative": _plain(result.relative),
        "element": _plain(result.element),
        "limit": limit.relative,
        "differs": wrong,
        "worst": list(result.worst),
        "reference": _plain(result.reference),
        "candidate": _plain(result.candidate),
    }


def _loss(reference: Capture, candidate: Capture, count: int, limit: float) -> Judgement:
    with reference.reader("L") as left, candidate.reader("L") as right:
        loss = compare("loss", left("loss"), right("loss"))
        counted = float(right("valid_labels")[0])
    findings = []
    if loss.problem is not None:
        findings.append(finding("P004" if loss.elements else "P003", f"{TITLES['L']}: {loss.problem}", tensor="loss"))
    elif not loss.relative <= limit:
        values = f"reference {loss.reference:.9g}, candidate {loss.candidate:.9g}"
        message = f"loss: {values}, relative {loss.relative:.3g}, limit {limit:g}"
        findings.append(finding("P301", message, tensor="loss"))
    if counted != count:
        findings.append(finding("P302", f"candidate counts {counted:g} valid positions, the batch has {count}"))
    verdict = Verdict.FAIL if findings else Verdict.PASS
    message = findings[0].message if findings else "loss and number of valid positions agree"
    figures: Figures = {
        "reference": _plain(loss.reference),
        "candidate": _plain(loss.candidate),
        "worst relative": _plain(loss.relative),
        "limit": limit,
        "valid positions": count,
    }
    row = _row("L", loss, _Limit(limit, limit), bool(findings))
    return Judgement(Stage(TITLES["L"], verdict, message, 2, figures), findings, [row])


def _plain(value: float) -> float | str:
    """The value, or its name where JSON has no number for it."""
    return value if math.isfinite(value) else str(value)
