"""`Subject`: what a run trains, whatever kind of model it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from ms_models.auto import AutoModelForCausalLM
from ms_models.data.loader import Batch
from ms_models.data.records import TRAIN
from ms_models.parallel.mesh import Mesh
from ms_models.train.config import RunConfig
from ms_models.train.precision import check_device
from ms_models.train.step import count_valid
from ms_models.train.task import MASKED, check_task


def unchanged(batch: Batch, positions: np.ndarray, split: str = TRAIN) -> Batch:
    """The batch."""
    return batch


@dataclass(frozen=True)
class Subject:
    """A model, and what its batches need."""

    model: Any
    """Has `loss`, `parameters_of`, `place`, `held`, `mesh`, `origin`, as `ms_models.families.CausalLM`."""
    count_valid: Callable[[np.ndarray], int] = count_valid
    """Positions of labels `[B, S]` that the loss counts."""
    prepare: Callable[[Batch, np.ndarray, str], Batch] = unchanged
    """Makes what the model reads of a batch, the positions of its rows (`[B]`, in the training stream, or their numbers
    in the validation split) and the name of the split."""
    loader: Any = None
    """In place of a `TrainingLoader` where batches do not come from prepared data."""


def build(config: RunConfig, mesh: Mesh, resume: Path | None) -> Subject:
    """The subject of a run, with the weights of its start or of a checkpoint.

    Raises:
        UserError: the directory does not fit.
    """
    if config.model.adapter is not None:
        from ms_models.train.adapter.building import build_adapted

        return build_adapted(config, mesh, resume)
    assert config.model.path is not None
    check_device(config.precision)
    raw = read_config(resume or Path(config.model.path))
    if check_task(config, family_for_config(raw)) == MASKED:
        from ms_models.train.encoders import build_encoder

        return build_encoder(config, mesh, resume)
    recut = resume is not None and config.checkpoint.reshard
    model = AutoModelForCausalLM.from_pretrained(
        resume or config.model.path, mesh, config.parallel, compute=config.precision.compute, recut=recut
    )
    model.set_train()
    return Subject(model)
