"""`msmigrate parity`: PyTorch against MindSpore, stage by stage."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import MANIFEST, Capture
from migrate.parity.curve import curve
from migrate.parity.explain.failing import Explainer
from migrate.parity.job import Job
from migrate.parity.layouts.disagreeing import disagreeing
from migrate.parity.layouts.gathering import Disagreement
from migrate.parity.layouts.launching import capture_ranks
from migrate.parity.layouts.repeating import Repeating, explain_layout
from migrate.parity.layouts.request import Request
from migrate.parity.perturbed import STORED, perturbed
from migrate.parity.plan import Plan
from migrate.parity.self_noise import NOISY, SelfNoise
from migrate.parity.stages import ORDER, TITLES, Judgement, Tolerances, could_not_run, judge
from migrate.parity.training.stage import TITLE as CURVES
from migrate.parity.training.stage import Training
from migrate.processes import run
from migrate.progress import Tracker, quiet
from migrate.report import Report, Stage, Verdict

__all__ = ["curve", "model"]

CAPTURE_TIMEOUT_S = 3600.0
ROUNDED = ("F", "G")  # stages whose bounds may follow the rounding of PyTorch
SIDES = {"PyTorch": "migrate.parity.capture_torch", "MindSpore": "migrate.parity.capture_mindspore"}


def model(
    directory: Path,
    *,
    candidate: Path | None = None,
    stages: Sequence[str] = ORDER,
    tolerances: Tolerances | None = None,
    seed: int = 0,
    keep_going: bool = False,
    force: bool = False,
    curve_steps: int = 0,
    layout: str | None = None,
    state: str = STORED,
    timeout_s: float = CAPTURE_TIMEOUT_S,
    track: Tracker = quiet,
) -> Report:
    """Compares a Hugging Face model in PyTorch (transformers) with its ms_models cell, element by element.

    Each side runs in its own process, in fp32 on the same padded batch, and leaves files; only those are compared.
    Weights are used as stored. The stages run in the order W (weights, bit for bit), F (output of every module), L
    (loss), G (every gradient), U (two optimizer steps from injected gradients), C (curves, where asked for); after the
    first that does not pass, the rest is skipped unless `keep_going`. A failing F or G is explained: every module is
    judged alone.

    Args:
        directory: Hugging Face model directory.
        candidate: directory that the MindSpore side loads instead; the same by default.
        stages: which of W, F, L, G, U.
        tolerances: largest accepted differences.
        seed: of the batch.
        keep_going: judge every requested stage.
        force: also judge every module alone, on the reference's inputs and gradients, when stages F and G pass; it is
            done when they fail, and always in one process.
        curve_steps: then both sides also train so many steps (stage C); 0 for none.
        layout: the MindSpore side runs on several ranks, `tp=2,pp=2,sequence_parallel=true`; what they hold is put
            together and compared as a whole. A stage that fails is repeated in one process, then with one part of the
            layout at a time, to tell whose fault it is.
        state: `stored`, or moved by noise (see `perturbed`): `init` or `trained`. A candidate is never moved.
        timeout_s: for each side.
        track: progress.

    Raises:
        UserError: unknown stage, no supported model in `directory`, or a layout that does not fit it or other options.
    """
    wanted = _stages(stages)
    request = None if layout is None else Request.read(layout)
    disagreements: list[Disagreement] = []
    if candidate is not None and state != STORED:
        raise UserError(f"--state {state} moves the weights of one directory; compare two as they are stored")
    report = Report("parity model", str(directory))
    if candidate is not None:
        report.facts["candidate"] = str(candidate)
    with tempfile.TemporaryDirectory(prefix="msmigrate-parity-") as folder:
        directory = perturbed(directory, Path(folder) / "weights", state, seed)
        plan = Plan.make(directory, wanted, Path(folder), seed, request)
        job = plan.job
        with track("parity", len(SIDES) + 1 + len(wanted)) as advance:
            reference = _capture("PyTorch", job, Path(folder) / "reference", timeout_s)
            advance(1)
            own = None
            if isinstance(reference, Capture) and (noisy := tuple(stage for stage in wanted if stage in NOISY)):
                again = replace(job, stages=noisy, reordered=True)
                second = _capture("PyTorch", again, Path(folder) / "again", timeout_s)
                own = SelfNoise(reference, second, plan.batch["attention_mask"])
                report.facts["own noise of PyTorch"] = own.facts({stage: plan.names(stage) for stage in noisy})
            advance(1)
            other = replace(job, directory=(candidate or directory).absolute())
            if request is None:
                captured = _capture("MindSpore", other, Path(folder) / "candidate", timeout_s)
            else:
                captured, disagreements = capture_ranks(plan, other, request, Path(folder) / "candidate", timeout_s)
            advance(1)
            noise, bounds = _Noise(job, Path(folder) / "noise", timeout_s), tolerances or Tolerances()
            curves = Training(
                plan, other.directory, Path(folder) / "curves", curve_steps, seed, bounds, timeout_s, request
            )
            explainer = Explainer(plan, other, Path(folder), bounds, timeout_s, force)
            for stage in wanted:
                if not keep_going and (bad := _first_bad(report)):
                    report.stages.append(Stage(TITLES[stage], Verdict.SKIPPED, f"{bad} did not pass"))
                else:
                    judgement = _judge(stage, reference, captured, plan.batch, plan.names(stage), bounds, noise, own)
                    judgement, alone = disagreeing(judgement, stage, disagreements), None
                    # Modules are forced in one process; what only ranks get wrong is right there.
                    if request is None and isinstance(reference, Capture) and isinstance(captured, Capture):
                        if stage == "F":
                            alone = explainer.forward(report, judgement, reference, captured, noise.capture)
                        elif stage == "G" and not _first_bad(report):
                            alone = explainer.backward(report, judgement)
                    _add(report, judgement)
                    report.stages += [alone] if alone else []
                advance(1)
            if curve_steps and not keep_going and (bad := _first_bad(report)):
                report.stages.append(Stage(CURVES, Verdict.SKIPPED, f"{bad} did not pass"))
            elif curve_steps:
                curves.judge(report, request)
        if request is not None:
            repeating = Repeating(
                plan,
                other,
                lambda job, out: _capture("MindSpore", job, out, timeout_s),
                lambda stage, found: _judge(stage, reference, found, plan.batch, plan.names(stage), bounds, noise, own),
                curves,
                Path(folder),
                timeout_s,
            )
            compare = partial(
                model,
                directory,
                candidate=candidate,
                tolerances=tolerances,
                seed=seed,
                timeout_s=timeout_s,
                track=track,
            )
            explain_layout(report, request, repeating, compare, force=force, track=track)
    for capture in (reference, captured):
        report.facts |= capture.versions if isinstance(capture, Capture) else {}
    if isinstance(noise.result, str):
        report.facts["rounding of PyTorch"] = f"not measured: {noise.result}"
    tokens = int(plan.batch["attention_mask"].sum())
    report.facts |= {"model_type": plan.config["model_type"], "seed": seed, "tokens": tokens}
    if request is not None:
        report.facts["layout"] = str(request)
    report.facts["state"] = state
    report.facts["not compared"] = dict(plan.expected.left_out)
    return report


def _stages(stages: Sequence[str]) -> tuple[str, ...]:
    unknown = [stage for stage in stages if stage not in ORDER]
    if unknown or not stages:
        given = ", ".join(map(repr, unknown)) or "none"
        raise UserError(f"--stages: {given}: must be some of {', '.join(ORDER)}")
    return tuple(stage for stage in ORDER if stage in stages)


def _capture(side: str, job: Job, out: Path, timeout_s: float) -> Capture | str:
    """The capture of a side, or the reason why there is none."""
    out.mkdir()
    job.write(out / "job.json")
    outcome = run([sys.executable, "-m", SIDES[side], str(out / "job.json"), str(out)], timeout_s)
    # A process that died halfway leaves the stages it finished; those without a capture say why below.
    if not (out / MANIFEST).is_file():
        return f"{side}: {outcome.reason()}"
    capture = Capture.read(out)
    if outcome.returncode != 0:
        for stage in job.stages:
            if stage not in capture.stages:
                capture.errors.setdefault(stage, outcome.reason())
    return capture


class _Noise:
    """The PyTorch side in fp64, captured when a comparison first exceeds its bound."""

    def __init__(self, job: Job, out: Path, timeout_s: float) -> None:
        stages = tuple(stage for stage in job.stages if stage in ROUNDED)
        self.job, self.out, self.timeout_s = replace(job, stages=stages, dtype="float64"), out, timeout_s
        self.result: Capture | str | None = None

    def capture(self) -> Capture | None:
        """The capture, None if it cannot be made; the facts then say why."""
        if self.result is None:
            self.result = _capture("PyTorch", self.job, self.out, self.timeout_s)
        return self.result if isinstance(self.result, Capture) else None


def _judge(
    stage: str,
    reference: Capture | str,
    candidate: Capture | str,
    batch: Mapping[str, np.ndarray],
    expected: list[str],
    tolerances: Tolerances,
    noise: _Noise,
    own: SelfNoise | None,
) -> Judgement:
    if isinstance(reference, str) or isinstance(candidate, str):
        return could_not_run(stage, reference if isinstance(reference, str) else str(candidate))

    result = judge(stage, reference, candidate, batch, expected, tolerances)
    checked = result if own is None else own.check(result, stage, expected)
    is_unlike = result.stage.verdict is Verdict.FAIL and result.stage.compared
    if stage in ROUNDED and (is_unlike or checked.stage.verdict is not result.stage.verdict):
        result = judge(stage, reference, candidate, batch, expected, tolerances, noise.capture())
        checked = result if own is None else own.check(result, stage, expected)
    return checked


def _add(report: Report, judgement: Judgement) -> None:
    report.stages.append(judgement.stage)
    report.findings += judgement.findings
    report.facts.setdefault("tensors", []).extend(judgement.rows)


def _first_bad(report: Report) -> str | None:
    bad = (stage.name for stage in report.stages if stage.verdict not in (Verdict.PASS, Verdict.SKIPPED))
    return next(bad, None)
