"""`msmigrate parity`: PyTorch against MindSpore, stage by stage."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from migrate.parity.capture import MANIFEST, Capture, Job
from migrate.parity.curve import curve
from migrate.parity.inputs import make_batch
from migrate.parity.stages import LOGITS, ORDER, TITLES, Tolerances, could_not_run, expected_modules, judge
from migrate.processes import run
from migrate.progress import Tracker, quiet
from migrate.report import Report, Stage, Verdict

__all__ = ["curve", "model"]

CAPTURE_TIMEOUT_S = 3600.0
SIDES = {"PyTorch": "migrate.parity.capture_torch", "MindSpore": "migrate.parity.capture_mindspore"}


def model(
    directory: Path,
    *,
    candidate: Path | None = None,
    stages: Sequence[str] = ORDER,
    tolerances: Tolerances | None = None,
    seed: int = 0,
    keep_going: bool = False,
    timeout_s: float = CAPTURE_TIMEOUT_S,
    track: Tracker = quiet,
) -> Report:
    """Compares a Hugging Face model in PyTorch (transformers) with its ms_models cell, element by element.

    Each side runs in its own process, in fp32 on the same padded batch, and leaves files; only those are compared.
    Weights are used as stored. The stages run in the order W (weights, bit for bit), F (output of every module), L
    (loss), G (every gradient); after the first that does not pass, the rest is skipped unless `keep_going`.

    Args:
        directory: Hugging Face model directory.
        candidate: directory that the MindSpore side loads instead; the same by default.
        stages: which of W, F, L, G.
        tolerances: largest accepted differences.
        seed: of the batch.
        keep_going: judge every requested stage.
        timeout_s: for each side.
        track: progress.

    Raises:
        UserError: unknown stage, or no supported model in `directory`.
    """
    wanted = _stages(stages)
    config = read_config(directory)
    family = family_for_config(config, str(directory / "config.json"))
    modules = expected_modules(family, config)
    parameters = [parameter.name for parameter in family.parameters(config)]
    expected = {"W": parameters, "F": [*modules, LOGITS], "L": [], "G": parameters}
    batch = make_batch(config, seed)
    report = Report("parity model", str(directory))
    if candidate is not None:
        report.facts["candidate"] = str(candidate)
    with tempfile.TemporaryDirectory(prefix="msmigrate-parity-") as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **batch)
        captures: dict[str, Capture | str] = {}
        with track("parity", len(SIDES) + len(wanted)) as advance:
            for side, source in (("PyTorch", directory), ("MindSpore", candidate or directory)):
                job = Job(source.absolute(), wanted, inputs, tuple(modules))
                captures[side] = _capture(side, job, Path(folder) / side, timeout_s)
                advance(1)
            _judge_all(report, wanted, captures, batch, expected, tolerances or Tolerances(), keep_going, advance)
    tokens = int(batch["attention_mask"].sum())
    report.facts |= {"model_type": config["model_type"], "seed": seed, "tokens": tokens}
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


def _judge_all(
    report: Report,
    stages: Sequence[str],
    captures: dict[str, Capture | str],
    batch: dict[str, np.ndarray],
    expected: dict[str, list[str]],
    tolerances: Tolerances,
    keep_going: bool,
    advance: Any,
) -> None:
    reference, candidate = captures["PyTorch"], captures["MindSpore"]
    rows: list[dict[str, Any]] = []
    for stage in stages:
        if not keep_going and (bad := _first_bad(report)):
            report.stages.append(Stage(TITLES[stage], Verdict.SKIPPED, f"{bad} did not pass"))
        else:
            if isinstance(reference, str) or isinstance(candidate, str):
                reason = reference if isinstance(reference, str) else str(candidate)
                judgement = could_not_run(stage, reason)
            else:
                judgement = judge(stage, reference, candidate, batch, expected[stage], tolerances)
            report.stages.append(judgement.stage)
            report.findings += judgement.findings
            rows += judgement.rows
        advance(1)
    for capture in (reference, candidate):
        if isinstance(capture, Capture):
            report.facts |= capture.versions
    report.facts["tensors"] = rows


def _first_bad(report: Report) -> str | None:
    bad = (stage.name for stage in report.stages if stage.verdict not in (Verdict.PASS, Verdict.SKIPPED))
    return next(bad, None)
