"""A stage that fails under a layout, once more with less of it; and what one process alone has to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from migrate.captures.store import Capture
from migrate.parity.job import Job
from migrate.parity.judgement import TITLES, Judgement
from migrate.parity.layouts.blame import Blame, blame
from migrate.parity.layouts.disagreeing import disagreeing
from migrate.parity.layouts.gathering import Disagreement
from migrate.parity.layouts.launching import capture_ranks
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.parity.training.run import STAGE
from migrate.parity.training.stage import Training
from migrate.progress import Tracker
from migrate.report import Report, Verdict

EXPLAINED = ("F", "G")  # stages that one process explains
GUILTY = ("P203", "P204")
FACT = "failing stage with less of the layout"


@dataclass(frozen=True)
class Repeating:
    """The MindSpore side of a comparison, stage by stage in any layout, on the batch of the whole one."""

    plan: Plan
    job: Job
    """Of the MindSpore side."""
    capture: Callable[[Job, Path], Capture | str]
    """Runs a job in one process."""
    judge: Callable[[str, Capture | str], Judgement]
    """Compares a stage of a capture with the reference."""
    training: Training
    folder: Path
    timeout_s: float
    numbers: count[int] = field(default_factory=count)

    def verdict(self, stage: str, request: Request | None) -> Verdict:
        """The verdict on a stage.

        Args:
            stage: one of W, F, L, G, U, C.
            request: layout; None for one process.
        """
        if stage == STAGE:
            scratch = Report("parity model", "")
            self.training.judge(scratch, request)
            verdicts = {one.verdict for one in scratch.stages}
            return next(one for one in (Verdict.COULD_NOT_RUN, Verdict.FAIL, Verdict.PASS) if one in verdicts)
        job, out = replace(self.job, stages=(stage,)), self.folder / f"repeated{next(self.numbers)}"
        found: list[Disagreement] = []
        captured: Capture | str
        if request is None:
            captured = self.capture(job, out)
        else:
            captured, found = capture_ranks(self.plan, job, request, out, self.timeout_s)
        return disagreeing(self.judge(stage, captured), stage, found).stage.verdict


def explain_layout(
    report: Report,
    request: Request,
    repeating: Repeating,
    compare: Callable[..., Report],
    *,
    force: bool,
    track: Tracker,
) -> None:
    """Adds to a report whose fault the first failing stage is, and what a comparison in one process explains.

    Args:
        report: of a comparison under a layout.
        request: the layout.
        repeating: stages with less of it.
        compare: a comparison of the same directories in one process, takes `stages` and `force`.
        force: whether every module is to be judged alone in any case; that is done in one process.
        track: progress.
    """
    failed = next((one for one in report.stages if one.verdict is Verdict.FAIL), None)
    stage = "F" if failed is None else failed.name[0]
    found = Blame()
    if failed is not None:
        found = blame(failed.name, request, partial(repeating.verdict, stage), track)
        report.findings += found.findings
        report.facts[FACT] = found.facts
    if force or (found.of_model and stage in EXPLAINED):
        asked = [one for one in EXPLAINED if TITLES[one] in [judged.name for judged in report.stages]]
        alone = compare(stages=(asked or ["F"]) if force else [stage], force=force)
        if any(one.code in GUILTY for one in alone.findings):  # it is known which of the later ones are heirs
            report.findings[:] = [one for one in report.findings if one.code != "P202"]
        known = {"P202", *(one.code for one in report.findings)}
        report.findings += [one for one in alone.findings if one.code not in known]
        report.facts = {**alone.facts, **report.facts}
        if force:
            report.stages += [replace(one, name=f"{one.name}, one process") for one in alone.stages]
