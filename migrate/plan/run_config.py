"""Between plans and run configurations: a plan as YAML for `msmigrate train`, and a run's own layout as a choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from migrate.plan.job import Choice, Job
from migrate.plan.search import Plan, Planned

STEPS = 1000
"""Of a written configuration; every run has its own. Fewer where the data would be read more often than teaches."""
WARMUP = 0.02
"""Share of the steps; 1-5 % are usual."""
STEPS_OF_AN_EPOCH = 100
"""A global batch that nobody asked for is small enough for so many steps from the data there is."""
CHECKPOINTS = 10
"""In the course of a run, evenly."""
EVALUATE_EVERY = 500
"""Steps between evaluations; 500 to 1000 are usual, and a short run is evaluated with its checkpoints."""


@dataclass(frozen=True)
class Rows:
    """Prepared data as far as a run configuration depends on it."""

    seq_length: int
    train: int
    """Rows to train on."""
    validation: int
    """Rows held out."""


def rows_of(data: Path) -> Rows | None:
    """The prepared data in a directory; None where it is still to be prepared.

    Raises:
        UserError: there is a directory, but no whole prepared data.
    """
    if not data.exists():
        return None
    from ms_models.data.records import TRAIN, VALIDATION, PreparedData

    found = PreparedData.read(data)
    return Rows(found.seq_length, found.splits[TRAIN].rows, found.splits[VALIDATION].rows)


def batch_for(rows: Rows, usual: int, devices: int) -> int:
    """Sequences of a step that the data has enough of: the usual number, or fewer: the devices times a power of two."""
    most = max(rows.train // STEPS_OF_AN_EPOCH, 1)
    if usual <= most:
        return usual
    return devices << (max(most // devices, 1).bit_length() - 1)


def steps_for(rows: Rows | None, global_batch: int) -> int:
    """Steps of a run that reads its data no more often than a dry run warns of (R106).

    Raises:
        UserError: the data does not fill one global batch.
    """
    if rows is None:
        return STEPS
    if rows.train < global_batch:
        raise UserError(
            f"plan: the data has {rows.train} sequences, which do not fill a global batch of {global_batch}; "
            "lower --global-batch, or prepare more text"
        )
    from ms_models.train.launch.checks.advice import EPOCHS

    return min(STEPS, EPOCHS * rows.train // global_batch)


def run_values(
    planned: Planned, job: Job, model: Path, data: Path, output: Path, rows: Rows | None = None
) -> dict[str, Any]:
    """The sections of a run configuration that a plan decides, the paths it needs, and usual values of the rest.

    Raises:
        UserError: the data is too little.
    """
    steps = steps_for(rows, job.global_batch)
    save_every = max(1, steps // CHECKPOINTS)
    evaluate_every = EVALUATE_EVERY if steps > EVALUATE_EVERY else save_every
    if rows is not None and not rows.validation:
        evaluate_every = 0
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
            "steps": steps,
            "micro_batch_size": choice.micro_batch,
            "accumulation": choice.micro_batches,
            "jit": choice.layout.zero != 3,
            "eval_every": evaluate_every,
        },
        "schedule": {"warmup_steps": max(1, round(WARMUP * steps))},
        "checkpoint": {"every": save_every},
        "output": {"directory": str(output)},
    }


def write(plan: Plan, path: Path, model: Path, data: Path, output: Path, rows: Rows | None = None) -> None:
    """Writes the best layout of a plan as a run configuration, with what was estimated as a comment.

    Raises:
        UserError: nothing fits, or the file cannot be written.
    """
    if not plan.ranked:
        raise UserError(f"{path}: not written, because no layout fits")
    best = plan.ranked[0]
    values = run_values(best, plan.job, model, data, output, rows)
    head = (
        f"# msmigrate plan: {plan.shapes.parameters:,} parameters on {plan.job.devices} devices of "
        f"{plan.job.memory / 2**30:.0f} GiB\n"
        f"# estimated: {best.memory.total / 2**30:.1f} GiB per rank, {best.time.total:.2f} s per step on "
        f"{plan.hardware.name}\n# train.steps, optimizer and schedule are yours to set\n"
    )
    if best.is_short_of_micro_batches:
        head += "# few micro-batches for the stages of the pipeline: a dry run warns of it (R101)\n"
    if rows is None:
        head += f"# {data} is not there yet: prepare it with sequences of {plan.job.seq_length} tokens\n"
    elif not rows.validation:
        head += f"# {data} has no validation split, so that nothing is evaluated\n"
    if plan.job.devices > plan.job.node_size:
        nodes = plan.job.devices // plan.job.node_size
        head += f"# on each machine: msmigrate train {path.name} --nnodes {nodes} --node-rank R --master HOST:PORT\n"
    try:
        path.write_text(head + yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def choice_of_run(path: Path) -> tuple[Choice, str, int | None]:
    """The choice a run configuration makes, its precision, and its sequence length where it or its data says one.

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
    length = config.data.seq_length
    if length is None and config.data.is_given and (rows := rows_of(config.data_parts[0][0])) is not None:
        length = rows.seq_length
    return choice, config.precision.compute, length
