"""Symptoms of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import figures
from migrate.trouble.rule import Evidence, NoEvidenceError, TroubleRule

BLOCKS = 0.05
LONG_S = 1800.0


def block(run: RunRecord) -> Iterator[Evidence]:
    """Share of the time in which training waited for a save."""
    total = sum(seconds for _, seconds in figures(run, "step_time_s"))
    if len(run.checkpoints) < 2:
        raise NoEvidenceError("two checkpoints")
    waited = sum(float(one["checkpoint_blocked_s"]) for one in run.checkpoints)
    if waited > BLOCKS * (total + waited):
        yield Evidence(f"training waited {waited:.1f} s for {len(run.checkpoints)} checkpoints, "
                       f"{waited / (total + waited):.1%} of its time")  # fmt: skip


def overlap(run: RunRecord) -> Iterator[Evidence]:
    """Saves that take longer than the steps between them."""
    steps = dict(figures(run, "step_time_s"))
    for before, one in pairwise(run.checkpoints):
        between = sum(steps.get(step, 0.0) for step in range(before["step"] + 1, one["step"] + 1))
        if float(before["checkpoint_s"]) > between > 0:
            yield Evidence(f"the checkpoint of step {before['step']} took {before['checkpoint_s']:.1f} s, the steps to "
                           f"the next one {between:.1f} s", setting="checkpoint.every")  # fmt: skip
            return


def none(run: RunRecord) -> Iterator[Evidence]:
    """A long run without any."""
    total = sum(seconds for _, seconds in figures(run, "step_time_s"))
    if total > LONG_S and not run.checkpoints:
        yield Evidence(f"{total / 3600:.1f} hours and no checkpoint", setting="checkpoint.every")


RULES = (
    TroubleRule(
        "T901", "training waits for checkpoints", Severity.WARNING,
        "Saving is synchronous, the disk is slow, or the next one begins before the last one is done.",
        "Set checkpoint.asynchronous, write to a local disk, raise checkpoint.every.",
        block,
    ),
    TroubleRule(
        "T902", "a checkpoint takes longer than the steps between two", Severity.WARNING,
        "The disk is slower than the run makes checkpoints.",
        "Raise checkpoint.every, or write to a faster disk.",
        overlap,
    ),
    TroubleRule(
        "T903", "a long run without checkpoints", Severity.ERROR,
        "checkpoint.every is 0, or larger than the run is long.",
        "Set checkpoint.every so that what is lost at a failure is bearable.",
        none,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
