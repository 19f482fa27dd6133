"""The verdict of each stage on a module of both repositories. What is expected is what the original has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.codes import finding
from migrate.parity.judgement import Figures, conclude, plain
from migrate.parity.repository.naming import Naming
from migrate.parity.repository.side import BUILD, MADE, SIZE
from migrate.parity.stages import TITLES, Judgement, Tolerances, could_not_run, judge, verdict_of
from migrate.parity.tolerances import limits_of, raised
from migrate.report import Finding, Severity, Stage, Verdict

NOTHING = {
    "W": "the module holds no tensors",
    "L": "the output holds no number to make a loss of",
    "G": "the loss depends on no parameter and no input of floating point",
}
BUFFERS = 1e-3
"""Bound of buffers as constructed, of the norm. MindSpore's exp on the CPU is off by 5e-6, and a table of sines at
position p by p times that: measured 1.6e-5 with 512 positions. Another base or formula gives 1e-2 and more."""
LISTED = 3  # names in a note
SIDES = ("PyTorch", "MindSpore")


@dataclass(frozen=True)
class Pair:
    """Both captures of a recipe."""

    reference: Capture
    candidate: Capture
    names: Naming
    noise: Capture | None = None
    """The reference in fp64."""

    def missing(self, stage: str) -> str | None:
        """Why a stage cannot be compared."""
        for side, capture in zip(SIDES, (self.reference, self.candidate), strict=True):
            if stage in capture.stages:
                continue
            if BUILD in capture.errors or BUILD not in capture.stages:
                return f"{side}: the module does not build: {capture.errors.get(BUILD, 'the process ended before it')}"
            return f"{side}: {capture.errors.get(stage, 'the process ended before this stage')}"
        return None


def judge_stage(stage: str, pair: Pair, tolerances: Tolerances) -> Judgement:
    """Compares one stage of one recipe."""
    if (reason := pair.missing(stage)) is not None:
        return could_not_run(stage, reason)
    names = pair.reference.names(stage)
    if not names and stage in NOTHING and _is_nothing(stage, pair.candidate):
        return Judgement(Stage(TITLES[stage], Verdict.SKIPPED, NOTHING[stage]))
    if stage == "L":
        return _loss(pair, tolerances)
    judgement = judge(stage, pair.reference, pair.candidate, {}, names, tolerances, pair.noise)
    if stage == "W":
        judgement = _constructed(pair, judgement, tolerances) if judgement.stage.verdict is Verdict.PASS else judgement
        judgement.findings += _unknown(pair.names)
    return judgement


def _is_nothing(stage: str, candidate: Capture) -> bool:
    """Whether the candidate has no tensors either; MindSpore gives gradients of zero where PyTorch gives none."""
    with candidate.reader(stage) as read:
        return all(stage == "G" and not read(name).any() for name in candidate.names(stage))


def _unknown(names: Naming) -> list[Finding]:
    """Where the report says it knows all tensors of a class and does not; what it does not know keeps its name."""
    findings = []
    for what, found in (("does not know", names.strange), ("knows, but the original lacks,", names.lacking)):
        if found:
            more = ", ..." if len(found) > LISTED else ""
            message = f"{TITLES['W']}: the code report {what} {', '.join(found[:LISTED])}{more}"
            note = replace(finding("P102", message, tensor=found[0]), severity=Severity.NOTE)
            findings.append(note)
    return findings


def _constructed(pair: Pair, judgement: Judgement, tolerances: Tolerances) -> Judgement:
    """Buffers that constructors make: they are loaded for the other stages, so only here can they differ."""
    if (reason := pair.missing(MADE)) is not None:
        return could_not_run("W", reason)
    there = set(pair.candidate.names(MADE))
    names = [name for name in pair.reference.names(MADE) if name in there]
    with pair.reference.reader(MADE) as left, pair.candidate.reader(MADE) as right:
        # Equal values do, infinite ones (masks) as well; others may be computed.
        off = [name for name in names if not np.array_equal(left(name), right(name))]
        results = [compare(name, left(name), right(name)) for name in off]
    made = verdict_of("F", results, replace(tolerances, activations=BUFFERS)) if results else None
    if made is None or made.stage.verdict is Verdict.PASS:
        figures = judgement.stage.figures | ({"buffers as constructed": len(names)} if names else {})
        return replace(judgement, stage=replace(judgement.stage, figures=figures))
    first = next(found for found in made.findings if found.code != "P202")
    message = f"as constructed, {first.message.removeprefix('first divergence: ')}"
    findings = [finding("P101", message, tensor=first.tensor)]
    return Judgement(replace(judgement.stage, verdict=Verdict.FAIL, message=message), findings, judgement.rows)


def _loss(pair: Pair, tolerances: Tolerances) -> Judgement:
    """A loss of the module, relative to itself; one that is made, relative to the size of its terms."""
    with pair.reference.reader("L") as left, pair.candidate.reader("L") as right:
        result = compare("loss", left("loss"), right("loss"))
        is_made = SIZE in pair.reference.names("L")
        if is_made and result.problem is None:
            size = float(left(SIZE)[0])
            apart = abs(result.reference - result.candidate)
            relative = 0.0 if apart == 0 else apart / size if size else np.inf
            result = replace(result, relative=relative, element=relative, zeros=size == 0)
    if is_made:  # it says no more than the outputs, so it may be off by as much
        tolerances = replace(tolerances, loss=tolerances.activations)
    limits = limits_of("L", [result], tolerances)
    if not is_made and pair.noise is not None:
        limits = [raised(limits[0], own, tolerances) for own in _roundings(pair)[:1]] or limits
    judgement = conclude("L", [result], limits)
    kind = "a seeded projection of the outputs" if is_made else "the loss of the module"
    stage = judgement.stage
    figures: Figures = {"compared": kind, "reference": plain(result.reference), "candidate": plain(result.candidate)}
    message = f"{kind} agrees" if stage.verdict is Verdict.PASS else f"{kind} differs"
    return replace(judgement, stage=replace(stage, message=message, figures={**stage.figures, **figures}))


def _roundings(pair: Pair) -> list[Difference]:
    """How PyTorch's own results differ from those in fp64, the largest first: the loss, and what it may be made of.

    A loss is one number, which may be right by luck; so outputs of the module and of those that it calls count as well.
    """
    found = []
    for stage in ("L", "F"):
        if pair.noise is None or stage not in pair.noise.stages or stage not in pair.reference.stages:
            continue
        with pair.reference.reader(stage) as left, pair.noise.reader(stage) as exact:
            there = set(pair.noise.names(stage))
            names = [name for name in pair.reference.names(stage) if name in there and "." not in name]
            found += [compare(name, left(name).astype(np.float64), exact(name).astype(np.float64)) for name in names]
    return sorted((one for one in found if one.problem is None), key=lambda one: one.relative, reverse=True)


def exceeds(judgement: Judgement) -> bool:
    """Whether the rounding of the reference is worth measuring."""
    return judgement.stage.verdict is Verdict.FAIL and bool(judgement.stage.compared)
