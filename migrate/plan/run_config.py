"""Between plans and run configurations: a plan as YAML for `msmigrate train`, and a run's own layout as a choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from migrate.plan.job import Choice, Job
from migrate.plan.search import Plan, Planned

STEPS = 1000
"""Of a written configuration; every run has its own."""


def run_values(planned: Planned, job: Job, model: Path, data: Path, output: Path) -> dict[str, Any]:
    """The sections of a run configuration that a plan decides, and the paths it needs."""
    choice = planned.choice
    axes = {name: size for name, size in choice.layout.to_dict().items() if size != 1 or name == "zero"}
    parallel: dict[str, Any] = {"sequence_parallel": choice.sequence_parallel, "recompute": choice.recompute}
    if choice.layout.pp > 1:
        parallel["schedule"] = choice.schedule
    if choice.layout.cp > 1:
        parallel["context"] = choice.context
    return {
        "model": {"path": str(model)},
        "data": {"path": str(data), "seq_length": job.seq_length},
        "layout": axes,
        "parallel": parallel,
        "precision": {"compute": job.precision},
        "train": {
            "steps": STEPS,
            "micro_batch_size": choice.micro_batch,
            "accumulation": choice.micro_batches,
            "jit": choice.layout.zero != 3,
        },
        "output": {"directory": str(output)},
    }


def write(plan: Plan, path: Path, model: Path, data: Path, output: Path) -> None:
    """Writes the best layout of a plan as a run configuration, with what was estimated as a comment.

    Raises:
        UserError: nothing fits, or the file cannot be written.
    """
    if not plan.ranked:
        raise UserError(f"{path}: not written, because no layout fits")
    best = plan.ranked[0]
    values = run_values(best, plan.job, model, data, output)
    head = (
        f"# msmigrate plan: {plan.shapes.parameters:,} parameters on {plan.job.devices} devices of "
        f"{plan.job.memory / 2**30:.0f} GiB\n"
        f"# estimated: {best.memory.total / 2**30:.1f} GiB per rank, {best.time.total:.2f} s per step on "
        f"{plan.hardware.name}\n# train.steps, optimizer and schedule are yours to set\n"
    )
    if plan.job.devices > plan.job.node_size:
        nodes = plan.job.devices // plan.job.node_size
        head += f"# on each machine: msmigrate train {path.name} --nnodes {nodes} --node-rank R --master HOST:PORT\n"
    try:
        path.write_text(head + yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def choice_of_run(path: Path) -> tuple[Choice, str, int | None]:
    """The choice a run configuration makes, its precision, and its sequence length where it says one.

    Raises:
        UserError: the configuration is none, as `msmigrate train` would say.
    """
    from ms_models.train.config import load

    config = load(path)
    choice = Choice(
        config.layout,
        config.train.micro_batch_size,
        config.train.accumulation,
        config.parallel.recompute,
        config.parallel.sequence_parallel,
        config.parallel.schedule_for(config.layout),
        config.parallel.context,
        config.parallel.bucket_mib,
    )
    return choice, config.precision.compute, config.data.seq_length
