"""What a run is before each update, so that two runs can be told to be on the same trajectory, not only alike."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.common import generator

from ms_models.data.loader import Batch
from ms_models.train.checkpoints import random_state
from ms_models.train.step import StepResult, Trainer

FIELDS = ("updates", "rows", "lr", "weights", "moments", "random", "loss", "grad_norm")
"""Of a record; all but the last two are from before the update."""


def record(trainer: Trainer) -> list[dict[str, Any]]:
    """The records of the steps that follow, as they come.

    Each step also draws from every generator, so that one that was not restored is seen.
    """
    records: list[dict[str, Any]] = []
    step = trainer.step

    def recorded(batches: Sequence[Batch], lr: float) -> StepResult:
        before = {
            "updates": trainer.optimizer.step,
            "rows": [batch["input_ids"][:, 0].tolist() for batch in batches],
            "lr": lr,
            "weights": digest(weights_of(trainer)),
            "moments": digest(buffer.asnumpy() for buffers in trainer.optimizer.flat.values() for buffer in buffers),
            "random": hashlib.sha256(json.dumps(random_state.capture()).encode()).hexdigest(),
        }
        draw()
        result = step(batches, lr)
        records.append({**before, "loss": result.loss, "grad_norm": result.grad_norm})
        return result

    trainer.step = recorded  # type: ignore[method-assign]
    return records


def weights_of(trainer: Trainer) -> Iterable[np.ndarray]:
    """What this rank has of the weights."""
    if trainer.divided is not None:
        return (kept.asnumpy() for kept in trainer.divided.kept)
    return (parameter.asnumpy() for parameter in trainer.model.get_parameters())


def draw() -> None:
    """One number of every generator."""
    random.random()
    np.random.rand()
    generator.default_generator._step(Tensor(4, ms.int64))


def digest(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 over all elements."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
