"""What it does to a verdict that ranks disagree about what they hold in common."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from migrate.parity.codes import finding
from migrate.parity.judgement import TITLES, Judgement
from migrate.parity.layouts.gathering import Disagreement
from migrate.report import Verdict

LISTED = 5


def disagreeing(judgement: Judgement, stage: str, found: Collection[Disagreement]) -> Judgement:
    """The judgement of a stage, failed where ranks that hold the same thing have different bits of it.

    The comparison itself was with the first of these ranks, and may have passed.

    Args:
        judgement: of the comparison.
        stage: which it is of.
        found: of all stages.
    """
    here = [one for one in found if one.stage == stage]
    if not here or judgement.stage.verdict is Verdict.COULD_NOT_RUN:
        return judgement
    findings = [
        finding("P701", f"{TITLES[stage]}: rank {one.rank} has another {one.name} than a rank before it",
                tensor=one.name)
        for one in here[:LISTED]
    ]  # fmt: skip
    message = judgement.stage.message if judgement.stage.verdict is Verdict.FAIL else findings[0].message
    stopped = replace(judgement.stage, verdict=Verdict.FAIL, message=message)
    stopped.figures["ranks disagree about"] = len(here)
    return Judgement(stopped, [*judgement.findings, *findings], judgement.rows)
