"""Symptoms of the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import figures, losses, named
from migrate.trouble.rule import Evidence, NoEvidenceError, TroubleRule

RISE = 0.3
"""Nats by which the loss rises behind the warmup."""
JUMP = 1.5
"""Factor between neighbouring steps behind the warmup; schedules change by far less, except in short runs."""
LONG = 200


def is_zero(run: RunRecord) -> Iterator[Evidence]:
    """Steps without a learning rate, the last one apart."""
    last = int(run.setting("train.steps", 0))
    steps = [step for step, rate in figures(run, "lr") if rate == 0 and step != last]
    if steps:
        yield Evidence(f"the learning rate is 0 in {named(steps)}", setting="schedule")


def too_high(run: RunRecord) -> Iterator[Evidence]:
    """The loss behind the warmup against that at its end."""
    warmup, points = int(run.setting("schedule.warmup_steps", 0)), losses(run)
    size = max(3, warmup // 4)
    before = [loss for step, loss in points if warmup - size < step <= warmup]
    behind = [(step, loss) for step, loss in points if warmup < step <= warmup + 4 * size]
    if warmup < 3 or len(before) < 3 or len(behind) < 4 * size:
        raise NoEvidenceError("a warmup of 3 steps, and as many steps behind it")
    windows = [(behind[i][0], fmean(loss for _, loss in behind[i : i + size])) for i in range(len(behind) - size + 1)]
    step, highest = max(windows, key=lambda one: one[1])
    if highest > fmean(before) + RISE:
        yield Evidence(f"mean loss {fmean(before):.4f} at the end of the warmup (step {warmup}), {highest:.4f} from "
                       f"step {step} on", setting="optimizer.lr")  # fmt: skip


def jumps(run: RunRecord) -> Iterator[Evidence]:
    """Neighbouring steps with very different rates."""
    warmup = int(run.setting("schedule.warmup_steps", 0))
    points = [(step, rate) for step, rate in figures(run, "lr", 2) if step > warmup]
    if int(run.setting("train.steps", 0)) < LONG:
        raise NoEvidenceError(f"a run of {LONG} steps; a schedule of fewer changes fast by itself")
    found = []
    for (_, before), (step, rate) in pairwise(points):
        if min(before, rate) > 0 and max(before / rate, rate / before) > JUMP:
            found.append((step, before, rate))
    if found:
        step, before, rate = found[0]
        yield Evidence(f"{named([one[0] for one in found])}: {before:.3g} before step {step}, {rate:.3g} in it",
                       setting="schedule")  # fmt: skip


RULES = (
    TroubleRule(
        "T401", "learning rate is zero before the end", Severity.ERROR,
        "The schedule ended before the run, or begins with zero and has no warmup.",
        "Set train.steps to the length of the whole run; schedules end there. Set schedule.min_ratio above 0.",
        is_zero,
    ),
    TroubleRule(
        "T402", "loss rises right behind the warmup", Severity.ERROR,
        "The learning rate that the warmup ends at is too high for this model and batch size.",
        "Halve optimizer.lr, or warm up for 1 to 5 % of the run (schedule.warmup_steps).",
        too_high,
    ),
    TroubleRule(
        "T403", "learning rate jumps", Severity.WARNING,
        "The run was resumed with another schedule: other train.steps, warmup or optimizer.lr.",
        "Resume with the settings of the run; the launcher prints what changed since the checkpoint.",
        jumps,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
