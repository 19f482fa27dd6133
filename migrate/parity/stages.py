"""The verdict of each stage from two captures. What is expected comes from the family's facts, never from a capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.codes import finding
from migrate.parity.inputs import valid_labels
from migrate.parity.judgement import TITLES, Figures, Judgement, conclude, could_not_run, plain, row_of
from migrate.parity.modules import LOGITS, expected_modules
from migrate.parity.tolerances import Limit, Tolerances, forgiven, limits_of, raised
from migrate.report import Finding, Stage, Verdict

__all__ = [
    "LOGITS",
    "ORDER",
    "TITLES",
    "Judgement",
    "Tolerances",
    "could_not_run",
    "expected_modules",
    "judge",
    "verdict_of",
]

ORDER = tuple(TITLES)


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
        return _loss(reference, candidate, valid_labels(batch), tolerances.loss)
    findings = _names(stage, reference, candidate, expected)
    if findings:
        return Judgement(Stage(TITLES[stage], Verdict.FAIL, findings[0].message, 0), findings)
    mask = batch.get("attention_mask") if stage == "F" else None
    # The first difference in the order of computation is the guilty one: for F as the reference recorded it, for G from
    # the loss backwards.
    names = {"F": reference.names(stage), "G": list(reversed(expected))}.get(stage, list(expected))
    with reference.reader(stage) as left, candidate.reader(stage) as right:
        results = [compare(name, left(name), right(name), mask) for name in names]
    limits = limits_of(stage, results, tolerances)
    if noise is not None and stage in noise.stages:
        with reference.reader(stage) as left, noise.reader(stage) as exact:
            own = [compare(name, left(name).astype(np.float64), exact(name), mask) for name in names]
        limits = [raised(limit, rounding, tolerances) for limit, rounding in zip(limits, own, strict=True)]
        if stage == "G":
            with reference.reader(stage) as left:
                largest = max(float(np.abs(left(name)).max(initial=0.0)) for name in names)
            limits = forgiven(limits, results, largest, tolerances)
    return conclude(stage, results, limits)


def verdict_of(stage: str, results: list[Difference], tolerances: Tolerances) -> Judgement:
    """The verdict on comparisons made elsewhere; the first difference is the guilty one."""
    return conclude(stage, results, limits_of(stage, results, tolerances))


def _names(stage: str, reference: Capture, candidate: Capture, expected: Sequence[str]) -> list[Finding]:
    if not expected:
        return [finding("P002", f"{TITLES[stage]}: no tensors are expected, so there is nothing to compare")]
    findings = []
    for side, capture in (("PyTorch", reference), ("MindSpore", candidate)):
        found = capture.names(stage)
        held, wanted = set(found), set(expected)
        lacking = [name for name in expected if name not in held]
        strange = [name for name in found if name not in wanted]
        for what, names in (("lacks", lacking), ("has, unexpectedly,", strange)):
            if names:
                some = ", ".join(names[:5])
                message = f"{TITLES[stage]}: {side} {what} {len(names)} of {len(expected)} tensors: {some}"
                findings.append(finding("P002", message, tensor=names[0]))
    return findings


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
        "reference": plain(loss.reference),
        "candidate": plain(loss.candidate),
        "worst relative": plain(loss.relative),
        "limit": limit,
        "valid positions": count,
    }
    row = row_of("L", loss, Limit(limit, limit), bool(findings))
    return Judgement(Stage(TITLES["L"], verdict, message, 2, figures), findings, [row])
