"""The verdict of stage C: processes that train, and their curves within PyTorch's own noise."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from migrate.captures.store import MANIFEST, Capture
from migrate.parity.codes import finding
from migrate.parity.curve import compare_steps
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


def judge_curves(
    report: Report,
    plan: Plan,
    candidate: Path,
    folder: Path,
    *,
    steps: int,
    seed: int,
    tolerances: Tolerances,
    timeout_s: float,
) -> None:
    """Trains both sides and adds verdicts on loss and gradient norm, and their curves, to a report.

    Both start from the stored weights and see the same batches; the optimizer is that of stage U. PyTorch runs twice,
    the second time row by row, so that its sums are rounded otherwise: the candidate may lie three times as far away as
    that (`migrate.report.band`), and within the bounds of stages L (loss) and G (norm) in any case. Measured over 20
    steps of a Qwen2 of 2 layers: 2.4e-7 and 4.3e-7, PyTorch's own 1.4e-7 and 2.2e-7.

    Args:
        report: to extend.
        plan: of the comparison.
        candidate: directory of the MindSpore side.
        folder: for what the processes leave, must not exist.
        steps: of the optimizer.
        seed: of the batches.
        tolerances: least bounds.
        timeout_s: for each side.
    """
    folder.mkdir()
    write_batches(folder / "batches.npz", plan.config, plan.job.task, steps, seed)
    found: dict[str, Capture] = {}
    for side, program in SIDES.items():
        out = folder / side
        out.mkdir()
        job = plan.job if side == "PyTorch" else replace(plan.job, directory=candidate.absolute())
        job.write(out / "job.json")
        command = [sys.executable, "-m", program, str(out / "job.json"), str(folder / "batches.npz"), str(out)]
        outcome = run(command, timeout_s)
        capture = Capture.read(out) if (out / MANIFEST).is_file() else None
        if capture is None or STAGE not in capture.stages:
            reason = outcome.reason() if capture is None else capture.errors.get(STAGE, outcome.reason())
            report.stages.append(Stage(TITLE, Verdict.COULD_NOT_RUN, f"{side}: {reason}"))
            report.findings.append(finding("P001", f"{TITLE}: {side}: {reason}"))
            return
        found[side] = capture
    for key, floor in ((LOSS, tolerances.loss), (NORM, tolerances.gradients)):
        left, again = (_values(found["PyTorch"], name) for name in (key, key + AGAIN))
        _judge(report, key, floor, steps, left, again, _values(found["MindSpore"], key))


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
        report.stages.append(Stage(title, Verdict.COULD_NOT_RUN, reason))
        report.findings.append(finding("P001", f"{title}: {reason}"))
        return
    allowed = band.limits(left, [again], wanted, floor)
    compare_steps(report, left, right, wanted, allowed, key, title)


def _values(capture: Capture, name: str) -> dict[int, float]:
    with capture.reader(STAGE) as read:
        array: np.ndarray = read(name)
    return {step: float(value) for step, value in enumerate(array, 1)}
