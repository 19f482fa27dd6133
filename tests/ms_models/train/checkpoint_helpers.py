"""Trainers and saves in one process for the tests of checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.data.loader import TrainingLoader
from ms_models.parallel.mesh import Mesh
from ms_models.train.checkpoints import checkpoint
from ms_models.train.checkpoints.run_directory import complete_checkpoints
from ms_models.train.checkpoints.saver import Saver
from ms_models.train.config import CheckpointConfig, OptimizerConfig
from ms_models.train.step import Trainer


def make_trainer(model: Path) -> Trainer:
    """A trainer of one process, not compiled."""
    return Trainer(AutoModelForCausalLM.from_pretrained(model), Mesh.single(), OptimizerConfig(), jit=False)


def step(trainer: Trainer, data: Path, position: int = 0) -> float:
    """One step; gives the loss."""
    return trainer.step(TrainingLoader(data, seed=0, micro_batch_size=4, position=position).next_step(), 0.01).loss


def make_saver(run: Path, family: str = "llama", **section: int | bool) -> Saver:
    """A saver of one process; `section` is of the configuration."""
    values = {"asynchronous": False, **section}
    return Saver(run, 0, ParallelLayout(), family, CheckpointConfig(**values), lambda flag: flag)  # type: ignore[arg-type]


def begin(saver: Saver, number: int, trainer: Trainer) -> None:
    """Begins a save with the state a run would have."""
    is_copy = saver.config.asynchronous
    contents = checkpoint.contents(trainer, checkpoint.side_files(trainer), copy=is_copy)
    training = {"step": number, "tokens": 5, "optimizer_step": trainer.optimizer.step, "config": {}}
    saver.begin(number, contents, training, time.perf_counter())


def save(run: Path, number: int, trainer: Trainer, **section: int | bool) -> Path:
    """A whole save."""
    saver = make_saver(run, trainer.model.place.family_name, **section)
    begin(saver, number, trainer)
    (saved,) = saver.finish()
    return saved.directory


def steps(run: Path) -> list[int]:
    """Of the complete checkpoints."""
    return [number for number, _ in complete_checkpoints(run)]
