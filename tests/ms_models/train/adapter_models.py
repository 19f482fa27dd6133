"""Adapted models of one process for tests, their batches and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mappings.layout import ParallelLayout
from ms_models.data.loader import Batch
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.building import build_adapted
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.step import Trainer
from tests.ms_models.train.adapter_helpers import configured

SAME = 2e-6  # of the norm of a gradient: the same sums in another order; measured at most 4e-7
DENSE = ("mix.weight", "mix.bias", "out.weight", "out.bias")
FAULT = 100  # a planted fault exceeds it this many times


def batches(count: int, seed: int = 0) -> list[Batch]:
    """Micro-batches of two rows with very unequal numbers of labels."""
    rng = np.random.default_rng(seed)
    result: list[Batch] = []
    for number in range(count):
        ids = rng.integers(0, 19, (2, 8)).astype(np.int32)
        labels = rng.integers(0, 19, (2, 8)).astype(np.int32)
        labels[:, : 2 * number] = -100
        result.append({"input_ids": ids, "labels": labels, "attention_mask": np.ones_like(ids)})
    return result


def gradients(trainer: Trainer, micro_batches: list[Batch]) -> dict[str, np.ndarray]:
    """Summed over the micro-batches, divided by the number of labels, by parameter."""
    count = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    trainer.gradients.zero()
    inputs = [tuple(Tensor(batch[key]) for key in ("input_ids", "attention_mask", "labels")) for batch in micro_batches]
    trainer._forward_backward(inputs, Tensor(1 / count, ms.float32))  # type: ignore[arg-type]
    return trainer.sharding.whole(trainer.gradients.reduce())


def trainer_of(repository: Path, tmp_path: Path, adapter: dict[str, Any] | None = None, **sections: Any) -> Trainer:
    config = configured(repository, tmp_path / "run", adapter, **sections)
    mesh = Mesh(config.layout)
    subject = build_adapted(config, mesh, None)
    return Trainer(subject.model, mesh, config.optimizer, jit=config.train.jit, count_valid=subject.count_valid)


def distance(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Largest difference of a gradient, relative to its norm."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert np.abs(value).max() > 0, f"{name}: nothing is compared"
    return max(float(np.linalg.norm(found[n] - v) / np.linalg.norm(v)) for n, v in expected.items())


def stage(repository: Path, tmp_path: Path, layout: ParallelLayout, rank: int) -> AdaptedModel:
    """The model of a rank of a pipeline."""
    config = configured(repository, tmp_path / "run", {"blocks": "blocks"}, layout=layout.to_dict())
    subject = build_adapted(config, Mesh(layout, rank), None)
    model = subject.model
    assert isinstance(model, AdaptedModel)
    return model
