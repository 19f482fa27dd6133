"""`msmigrate parity dumps`: what two scripts wrote, maybe on two machines, compared element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.codes import finding
from migrate.parity.dump_noise import DumpNoise, suspected_rounding
from migrate.parity.judgement import conclude
from migrate.parity.matching import Matching, match
from migrate.parity.stages import ORDER, TITLES, Judgement, Tolerances, could_not_run, verdict_of
from migrate.report import Finding, Report, Stage, Verdict


def dumps(
    reference: Path,
    candidate: Path,
    *,
    stages: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    tolerances: Tolerances | None = None,
    noise: Path | None = None,
    keep_going: bool = False,
) -> Report:
    """Compares two captures stage by stage; after the first that does not pass, the rest is skipped.

    Every tensor must have its partner, by `names`, an equal name or MindSpore's spelling of it. Only what `allow` names
    may be on one side alone. Weights have to be equal bit for bit. Of weights behind an update (U) the change is
    compared, where the weights before it (W) were captured.

    Args:
        reference: directory that a capture was written to.
        candidate: the other one.
        stages: which of W, F, L, G, U; those of the reference by default.
        names: reference name to candidate name.
        allow: names that only one side has.
        tolerances: largest accepted differences.
        noise: a second dump of the reference's script, from which its own rounding is measured.
        keep_going: judge every stage.

    Raises:
        UserError: a directory holds no capture, no stage is left to compare, or `noise` is a dump of something else.
    """
    sides = Capture.read(reference), Capture.read(candidate)
    wanted = [stage for stage in ORDER if stage in (sides[0].stages if stages is None else stages)]
    if not wanted:
        raise UserError(f"{reference}: holds none of the stages {', '.join(ORDER)}")
    report = Report("parity dumps", f"{reference} | {candidate}")
    bounds = tolerances or Tolerances()
    again = None if noise is None else DumpNoise(sides[0], Capture.read(noise), bounds)
    if again is not None:
        again.check(wanted)
    matched: dict[str, int] = {}
    for stage in wanted:
        bad = next((s.name for s in report.stages if s.verdict not in (Verdict.PASS, Verdict.SKIPPED)), None)
        if bad is not None and not keep_going:
            report.stages.append(Stage(TITLES[stage], Verdict.SKIPPED, f"{bad} did not pass"))
            continue
        judgement = _judge(stage, *sides, names or {}, allow, bounds, again, matched)
        report.stages.append(judgement.stage)
        report.findings += judgement.findings
        report.facts.setdefault("tensors", []).extend(judgement.rows)
    report.facts["matched"] = matched
    return report


def _judge(
    stage: str,
    reference: Capture,
    candidate: Capture,
    given: Mapping[str, str],
    allow: Sequence[str],
    tolerances: Tolerances,
    noise: DumpNoise | None,
    matched: dict[str, int],
) -> Judgement:
    for side, capture in (("reference", reference), ("candidate", candidate)):
        if stage not in capture.stages:
            judgement = could_not_run(stage, f"the {side} has no such stage")
            fix = "Capture this stage on both sides, or leave it out with --stages."
            judgement.findings = [replace(found, fix=fix) for found in judgement.findings]
            return judgement
    found = match(reference.names(stage), candidate.names(stage), given)
    for *_, how in found.pairs:
        matched[how] = matched.get(how, 0) + 1
    findings = [finding("P002", f"{TITLES[stage]}: {line}") for line in _left_over(found, allow)]
    if not found.pairs:
        findings.append(finding("P002", f"{TITLES[stage]}: no tensor has a partner"))
    if findings:
        return Judgement(Stage(TITLES[stage], Verdict.FAIL, findings[0].message, len(found.pairs)), findings)
    # Gradients are looked at from the loss backwards, everything else in the order it was recorded.
    pairs = found.pairs[::-1] if stage == "G" else found.pairs
    results: list[Difference] = []
    with ExitStack() as stack:
        left, right = (stack.enter_context(_values(side, stage)) for side in (reference, candidate))
        results = [compare(name, left(name), right(other)) for name, other, _ in pairs]
        if noise is not None:
            second = stack.enter_context(_values(noise.again, stage))
            return conclude(stage, results, noise.limits(stage, results, left, second))
    judgement = verdict_of(stage, results, tolerances)
    if stage == "G" and (small := suspected_rounding(judgement, tolerances)):
        judgement.findings.append(_maybe_rounding(small))
    return judgement


def _maybe_rounding(names: Sequence[str]) -> Finding:
    message = (
        f"{len(names)} of the gradients that differ are below a millionth of the largest, so they may be rounding: "
    )
    return finding("P409", message + ", ".join(names[:5]), tensor=names[0])


@contextmanager
def _values(capture: Capture, stage: str) -> Iterator[Callable[[str], np.ndarray]]:
    """Tensors of a stage; of an update what it changed, since weights that hardly move hide how they move."""
    with capture.reader(stage) as read:
        if stage != "U" or "W" not in capture.stages:
            yield read
            return
        with capture.reader("W") as before:
            yield lambda name: read(name) - before(name)


def _left_over(found: Matching, allow: Sequence[str]) -> list[str]:
    lines = []
    for side, names in (("reference", found.lacking), ("candidate", found.strange)):
        if left := [name for name in names if name not in allow]:
            lines.append(f"only the {side} has {len(left)} tensors, e.g. {', '.join(left[:5])}")
    return lines
