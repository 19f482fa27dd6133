"""The candidate trains, with the runner's own step: `... mindspore_side JOB BATCHES OUT`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity.capture_mindspore import load
from migrate.parity.job import MASKED, Job
from migrate.parity.training.run import LOSS, NORM, STAGE, read_batches, settings
from migrate.parity.update_mindspore import trainer_of


def main(job_path: Path, batches: Path, out: Path) -> None:
    """Stores loss and gradient norm by step.

    Raises:
        UserError: the model cannot be built or loaded.
    """
    import mindspore

    mindspore.runtime.launch_blocking()
    job = Job.read(job_path)
    model = load(job)
    writer = CaptureWriter(out, {"mindspore": mindspore.__version__})
    with writer.stage(STAGE) as tensors:
        steps = [[_narrow(batch)] for batch in read_batches(batches)]
        losses, norms = train(model, steps, job.task == MASKED)
        tensors[LOSS], tensors[NORM] = np.array(losses), np.array(norms)


def _narrow(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.astype(np.int32) for name, values in batch.items()}


def train(
    model: Any, steps: Sequence[Sequence[Mapping[str, np.ndarray]]], is_masked: bool
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a run over batches; the model's parameters change.

    Args:
        model: of ms_models.
        steps: of each, the micro-batches of this rank.
        is_masked: whether it predicts hidden tokens.

    Raises:
        RuntimeError: the trainer left a step out.
    """
    trainer, rate = trainer_of(model, settings(len(steps)), model.count_valid if is_masked else None)
    losses, norms = [], []
    for step, micro_batches in enumerate(steps, 1):
        result = trainer.step(micro_batches, rate(step))
        if result.outcome != "updated":
            raise RuntimeError(f"step {step}: {result.outcome}")
        losses.append(result.loss)
        norms.append(result.grad_norm)
    return losses, norms


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:4]))
    except UserError as error:
        sys.exit(str(error))
