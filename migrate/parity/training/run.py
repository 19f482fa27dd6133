"""What both sides train on, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.inputs import make_batch
from migrate.parity.layouts.request import Request
from migrate.parity.updates import Updates

STAGE = "C"
LOSS, NORM = "loss", "gradient norm"
AGAIN = " again"
"""Ends the names of the reference's repetition."""


def settings(steps: int) -> Updates:
    """The optimizer of stage U, over a run of so many steps with a fifth of them as warmup."""
    return Updates(steps=steps, micro_batches=1, run_steps=steps, warmup_steps=max(1, steps // 5))


def write_batches(
    path: Path, config: Mapping[str, Any], task: str, steps: int, seed: int, request: Request | None = None
) -> None:
    """Stores a batch per step, each made from a seed of its own. Encoders see the first segment only, as in the runner.

    Args:
        path: npz to write.
        config: `config.json`.
        task: see `Job.task`.
        steps: of the run.
        seed: of the first batch.
        request: layout whose ranks share each batch; one process by default.
    """
    shape = {} if request is None else {"rows": request.rows, "parts": request.parts}
    arrays: dict[str, Any] = {}
    for step in range(1, steps + 1):
        batch = make_batch(config, seed + step, task, **shape, segments=False)
        arrays |= {f"{step}/{name}": values for name, values in batch.items()}
    np.savez(path, **arrays)


def read_batches(path: Path) -> list[dict[str, np.ndarray]]:
    """The batches in the order of their steps."""
    batches: dict[int, dict[str, np.ndarray]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            step, _, name = key.partition("/")
            batches.setdefault(int(step), {})[name] = arrays[key]
    return [batches[step] for step in sorted(batches)]
