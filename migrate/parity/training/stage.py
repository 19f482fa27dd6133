"""The verdict of stage C: processes that train, and their curves within PyTorch's own noise."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from migrate.captures.store import MANIFEST, Capture
from migrate.parity.codes import finding
from migrate.parity.curve import compare_steps
from migrate.parity.job import Job
from migrate.parity.layouts.launching import LOGS, reason_of, start_ranks
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.parity.tolerances import Tolerances
from migrate.parity.training.run import AGAIN, LOSS, NORM, STAGE, write_batches
from migrate.processes import run
from migrate.report import Curve, Report, Stage, Verdict, band

TITLE = "C curve"
SIDES = {
    "PyTorch": "migrate.parity.training.torch_side",
    "MindSpore": "migrate.parity.training.mindspore_side",
}
RANK = "migrate.parity.training.rank"


@dataclass
class Training:
    """Stage C of a comparison.

    Both sides start from the stored weights and see the same batches; the optimizer is that of stage U. PyTorch runs
    twice, the second time row by row, so that its sums are rounded otherwise: the candidate may lie three times as far
    away as that (`migrate.report.band`), and within the bounds of stages L (loss) and G (norm) in any case. Measured
    over 20 steps of a Qwen2 of 2 layers: 2.4e-7 and 4.3e-7, PyTorch's own 1.4e-7 and 2.2e-7.

    Under a layout the ranks train, each replica on rows of its own, one per micro-batch; the band is the same, and all
    ranks must tell the same curves, bit for bit.
    """

    plan: Plan
    candidate: Path
    """Directory of the MindSpore side."""
    folder: Path
    """For what the processes leave, must not exist."""
    steps: int
    """Of the optimizer."""
    seed: int
    """Of the batches."""
    tolerances: Tolerances
    """Least bounds."""
    timeout_s: float
    """For each side."""
    shape: Request | None = None
    """Layout whose ranks can share the batches."""

    @cached_property
    def batches(self) -> Path:
        """What both sides train on."""
        self.folder.mkdir()
        path = self.folder / "batches.npz"
        write_batches(path, self.plan.config, self.plan.job.task, self.steps, self.seed, self.shape)
        return path

    @cached_property
    def reference(self) -> Capture | str:
        """Both curves of PyTorch, or why there are none."""
        return _capture(SIDES["PyTorch"], self.plan.job, self.batches, self.folder / "PyTorch", self.timeout_s)

    def judge(self, report: Report, request: Request | None = None) -> None:
        """Adds verdicts on loss and gradient norm, and the curves, to a report.

        Args:
            report: to extend.
            request: layout of the MindSpore side; one process by default.
        """
        if isinstance(self.reference, str):
            _could_not_run(report, TITLE, f"PyTorch: {self.reference}")
            return
        job = replace(self.plan.job, directory=self.candidate.absolute())
        out = self.folder / f"MindSpore {request or 'alone'}"
        if request is None:
            found = [_capture(SIDES["MindSpore"], job, self.batches, out, self.timeout_s)]
        else:
            found = capture_ranks(job, self.batches, request, out, self.timeout_s)
        captures: list[Capture] = []
        for number, one in enumerate(found):
            if isinstance(one, str):
                who = "MindSpore" if len(found) == 1 else f"MindSpore, rank {number} of {len(found)}"
                _could_not_run(report, TITLE, f"{who}: {one}")
                return
            captures.append(one)
        for key, floor in ((LOSS, self.tolerances.loss), (NORM, self.tolerances.gradients)):
            left, again = (_values(self.reference, name) for name in (key, key + AGAIN))
            first, *others = [_values(one, key) for one in captures]
            _judge(report, key, floor, self.steps, left, again, first)
            _check_ranks(report, key, first, others)


def capture_ranks(job: Job, batches: Path, request: Request, out: Path, timeout_s: float) -> list[Capture | str]:
    """What each rank of a layout has of its training, or the reason why it has nothing.

    Args:
        job: of the MindSpore side.
        batches: of `write_batches`.
        request: the layout.
        out: directory to make.
        timeout_s: after which all ranks are ended.
    """
    out.mkdir()
    job.write(out / "job.json")
    arguments = [str(out / "job.json"), str(batches), str(out), request.text]
    size = request.layout.world_size
    outcome = start_ranks(RANK, arguments, size, out / LOGS, timeout_s)
    problem = None if outcome.returncode == 0 else reason_of(out / LOGS, outcome)
    return [_read(out / f"rank{rank}", problem or "it left nothing behind") for rank in range(size)]


def _capture(program: str, job: Job, batches: Path, out: Path, timeout_s: float) -> Capture | str:
    out.mkdir()
    job.write(out / "job.json")
    outcome = run([sys.executable, "-m", program, str(out / "job.json"), str(batches), str(out)], timeout_s)
    return _read(out, outcome.reason())


def _read(folder: Path, reason: str) -> Capture | str:
    """What a process left in a folder; the reason where it did not get to its end."""
    capture = Capture.read(folder) if (folder / MANIFEST).is_file() else None
    if capture is None or STAGE not in capture.stages:
        return reason if capture is None else capture.errors.get(STAGE, reason)
    return capture


def _could_not_run(report: Report, title: str, reason: str) -> None:
    report.stages.append(Stage(title, Verdict.COULD_NOT_RUN, reason))
    report.findings.append(finding("P001", f"{title}: {reason}"))


def _check_ranks(report: Report, key: str, first: dict[int, float], others: Sequence[dict[int, float]]) -> None:
    """Fails the verdict on a curve where a rank knows another one than the first rank."""
    verdict = report.stages[-1]
    differing = [rank for rank, values in enumerate(others, 1) if values != first]
    if not differing or verdict.verdict is Verdict.COULD_NOT_RUN:
        return
    rank = differing[0]
    step = next(step for step in first if others[rank - 1].get(step) != first[step])
    found = finding("P701", f"{verdict.name}: rank {rank} has another {key} than rank 0 at step {step}", tensor=key)
    report.findings.append(found)
    message = verdict.message if verdict.verdict is Verdict.FAIL else found.message
    report.stages[-1] = replace(verdict, verdict=Verdict.FAIL, message=message)


def _judge(
    report: Report,
    key: str,
    floor: float,
    steps: int,
    left: dict[int, float],
    again: dict[int, float],
    right: dict[int, float],
) -> None:
    title = f"{TITLE}, {key}"
    curves = {"PyTorch": left, "MindSpore": right, "PyTorch row by row": again}
    for name, values in curves.items():
        drawn = [step for step in values if math.isfinite(values[step])]
        report.curves.append(Curve(name, [float(step) for step in drawn], [values[step] for step in drawn], key))
    wanted = range(1, steps + 1)
    bad = [step for step in wanted if not all(math.isfinite(one.get(step, math.nan)) for one in (left, again))]
    if bad or not all(left[step] for step in wanted):
        reason = f"PyTorch's own {key} has a value that is not finite, or 0"
        _could_not_run(report, title, reason)
        return
    allowed = band.limits(left, [again], wanted, floor)
    compare_steps(report, left, right, wanted, allowed, key, title)


def _values(capture: Capture, name: str) -> dict[int, float]:
    with capture.reader(STAGE) as read:
        array: np.ndarray = read(name)
    return {step: float(value) for step, value in enumerate(array, 1)}
