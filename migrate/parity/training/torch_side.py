"""The reference trains, and once more with sums in another order: `... torch_side JOB BATCHES OUT`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity.capture_torch import load
from migrate.parity.inputs import valid_labels
from migrate.parity.job import MASKED, Job
from migrate.parity.training.run import AGAIN, LOSS, NORM, STAGE, read_batches, settings
from migrate.parity.update_torch import optimizer_of


def main(job_path: Path, batches: Path, out: Path) -> None:
    """Stores loss and gradient norm by step of both runs.

    Raises:
        UserError: the model cannot be loaded.
    """
    import torch

    torch.use_deterministic_algorithms(True)
    job = Job.read(job_path)
    model = load(job)
    steps = read_batches(batches)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    writer = CaptureWriter(out, {"torch": torch.__version__})
    with writer.stage(STAGE) as tensors:
        for end, row_by_row in (("", False), (AGAIN, True)):
            model.load_state_dict(start)
            losses, norms = train(model, steps, row_by_row, job.task != MASKED)
            tensors[LOSS + end], tensors[NORM + end] = np.array(losses), np.array(norms)


def train(
    model: Any, batches: Sequence[Mapping[str, np.ndarray]], row_by_row: bool, is_causal: bool
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a run over the batches; the model's parameters change.

    Args:
        model: of transformers.
        batches: one per step.
        row_by_row: each row alone, the last one first, their gradients added up: the same, rounded otherwise.
        is_causal: whether the model takes `use_cache`.
    """
    import torch

    run = settings(len(batches))
    optimizer, schedule = optimizer_of(list(model.parameters()), run)
    extra = {"use_cache": False} if is_causal else {}
    losses, norms = [], []
    for batch in batches:
        optimizer.zero_grad()
        total, count = 0.0, valid_labels(batch)
        rows = len(batch["labels"])
        parts = [slice(row, row + 1) for row in reversed(range(rows))] if row_by_row else [slice(None)]
        for part in parts:
            own = {name: values[part] for name, values in batch.items()}
            if not valid_labels(own):
                continue
            inputs = {name: torch.from_numpy(values) for name, values in own.items()}
            loss = model(**inputs, **extra).loss * (valid_labels(own) / count)
            loss.backward()
            total += float(loss.detach())
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip_norm)))
        optimizer.step()
        schedule.step()
        losses.append(total)
    return losses, norms


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:4]))
    except UserError as error:
        sys.exit(str(error))
