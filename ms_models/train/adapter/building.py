"""Makes the subject of a run of an adapter: model, weights, batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ms_models.data.loader import Batch, TrainingLoader
from ms_models.data.packing import IGNORED
from ms_models.data.records import TRAIN
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.batches import RepositoryLoader
from ms_models.train.adapter.measured import MeasuredModel
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.adapter.origin import AdaptedOrigin
from ms_models.train.adapter.repository import Repository
from ms_models.train.adapter.tensors import Tensors
from ms_models.train.adapter.trial import attempt
from ms_models.train.adapter.weights import load
from ms_models.train.checkpoints.random_state import seed_all
from ms_models.train.config import RunConfig
from ms_models.train.config.adapter import AdapterConfig
from ms_models.train.subject import Subject


def build_adapted(config: RunConfig, mesh: Mesh, resume: Path | None) -> Subject:
    """The subject of a run of converted code, with the weights of its start or of a checkpoint.

    Raises:
        UserError: repository, class, arguments, weights, batches or layout do not fit.
    """
    adapter = config.model.adapter
    assert adapter is not None
    repository = Repository(adapter, mesh)
    # Weights that are drawn are drawn as wholes, alike on every rank.
    seed_all(config.train.seed, 0)
    repository.seed(config.train.seed)
    knows_logits = adapter.output == "logits" or adapter.logits is not None
    kind = MeasuredModel if knows_logits else AdaptedModel
    model = kind(repository.build(), adapter, mesh, config.parallel)
    model.set_train()
    if resume is not None:
        load(model, resume)
        model.place = replace(model.place, saved=Tensors.read(resume))
    elif adapter.weights is not None:
        load(model, Path(adapter.weights))
    model.origin = AdaptedOrigin(model.place.tensors, model.buffers())
    loader = None if adapter.batches is None else RepositoryLoader(config, repository, mesh.coordinates["dp"])
    convert = Labels(adapter)
    sample = _sample(config) if loader is None else loader.peek()
    attempt(model, convert(sample, np.zeros(0), TRAIN), jit=config.train.jit)
    model.keep_own_blocks()
    # Dropout of what tensor-parallel ranks all have must drop the same places; replicas see other samples.
    seed_all(config.train.seed, mesh.coordinates["dp"])
    repository.seed(config.train.seed + mesh.coordinates["dp"])
    return Subject(model, convert.count, convert, loader)


class Labels:
    """Labels as forward takes them."""

    def __init__(self, config: AdapterConfig) -> None:
        self.ignored, self.is_next = config.ignore_index, config.labels == "next"
        self.as_they_are = config.batches is not None

    def __call__(self, batch: Batch, positions: np.ndarray, split: str = TRAIN) -> Batch:
        """The batch with these labels; see `Subject.prepare`."""
        if self.as_they_are:
            return batch
        labels = batch["labels"]
        if self.is_next:
            labels = np.concatenate([labels[:, 1:], np.full_like(labels[:, :1], IGNORED)], axis=1)
        return {**batch, "labels": np.where(labels == IGNORED, self.ignored, labels).astype(labels.dtype)}

    def count(self, labels: np.ndarray) -> int:
        """How many of labels `[B, S]` the loss counts."""
        return int(((labels if self.is_next else labels[:, 1:]) != self.ignored).sum())


def _sample(config: RunConfig) -> Batch:
    loader = TrainingLoader(
        config.data_parts, seed=config.train.seed, micro_batch_size=config.train.micro_batch_size, prefetch=0
    )
    return loader.next_step()[0]
