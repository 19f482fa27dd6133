"""`msmigrate train --dry-run`: the verdict on a run, with the memory of a rank where a limit is stated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mappings.errors import UserError
from migrate.report import Finding, Report, Severity, Stage
from migrate.report import Verdict as Outcome

if TYPE_CHECKING:
    from ms_models.train.config import RunConfig
    from ms_models.train.launch.checks.model import Model
    from ms_models.train.launch.dry_run import Verdict

GIB = 1 << 30


def dry_run(
    config: Path,
    overrides: Sequence[str],
    *,
    resume: bool = False,
    resume_from: str | None = None,
    reshard: bool = False,
    device_memory: float | None = None,
) -> Verdict:
    """Everything about a run that needs no device; starts and writes nothing.

    Args:
        config: YAML configuration.
        overrides: `section.field=value` strings.
        resume: as in `train`.
        resume_from: as in `train`.
        reshard: as in `train`.
        device_memory: GiB of a device; the estimate of a rank must fit.
    """
    from ms_models.train.config import load
    from ms_models.train.launch import resuming
    from ms_models.train.launch.dry_run import could_not_run, judge

    try:
        loaded = load(config, overrides)
        loaded = resuming.requested(loaded, resume=resume, resume_from=resume_from, reshard=reshard)
    except UserError as error:
        return could_not_run(str(error))
    verdict = judge(loaded)
    return verdict if device_memory is None else _with_memory(verdict, loaded, device_memory)


def report_of(verdict: Verdict, config: Path) -> Report:
    """The verdict as a report for `--report` and pages: a stage for each check, a note for each warning."""
    kinds = {"pass": Outcome.PASS, "fail": Outcome.FAIL, "skipped": Outcome.SKIPPED}
    report = Report("train --dry-run", str(config))
    for check in verdict.checks:
        if check.verdict == "warning":
            report.findings.append(
                Finding(
                    check.code or "warning",
                    Severity.NOTE,
                    check.message,
                    "the run would start, but is likely to disappoint",
                    "change the field that is named; docs/dry-run.md",
                )
            )
            continue
        outcome = Outcome.COULD_NOT_RUN if verdict.config is None else kinds[check.verdict]
        report.stages.append(Stage(check.name, outcome, check.message))
    return report


def _with_memory(verdict: Verdict, config: RunConfig, device_memory: float) -> Verdict:
    from ms_models.train.launch.checks.check import Check
    from ms_models.train.task import CAUSAL, task_of

    if verdict.model is None or verdict.seq_length is None:
        return verdict.with_check(Check("memory", "skipped", "model or sequence length are not known"))
    if task_of(verdict.model.family) != CAUSAL:
        return verdict.with_check(Check("memory", "skipped", "estimates are for decoders"))
    try:
        total = _estimate(config, verdict.model, verdict.seq_length, device_memory)
    except UserError as error:
        return verdict.with_check(Check("memory", "fail", " ".join(str(error).split())))
    found = f"{total / GIB:.2f} GiB estimated for the fullest rank, {device_memory:g} GiB of a device"
    return verdict.with_check(Check("memory", "pass" if total <= device_memory * GIB else "fail", found))


def _estimate(config: RunConfig, model: Model, seq_length: int, device_memory: float) -> int:
    """Bytes that the fullest rank needs, see `migrate.plan.memory`."""
    from migrate.plan.engine import MSMIGRATE
    from migrate.plan.job import Choice, Job
    from migrate.plan.memory import memory
    from migrate.plan.shapes import ModelShapes
    from migrate.plan.widths import LayerWidths

    layout, options = config.layout, config.parallel
    shapes = ModelShapes(model.family, model.config)
    job = Job(
        devices=layout.world_size,
        memory=round(device_memory * GIB),
        seq_length=seq_length,
        global_batch=config.global_batch,
        node_size=layout.world_size // config.launch.nodes,
        precision=config.precision.compute,
    )
    choice = Choice(
        layout,
        config.train.micro_batch_size,
        config.train.accumulation,
        options.recompute,
        options.sequence_parallel,
        options.schedule_for(layout),
        options.context,
    )
    widths = {kind: LayerWidths.of(shapes, kind) for kind in set(shapes.kind_of_layer)}
    return memory(shapes, widths, choice, job, MSMIGRATE).total
