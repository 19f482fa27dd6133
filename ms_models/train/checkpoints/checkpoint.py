"""The whole state of a run in memory as the files of a checkpoint, and back: weights, moments, random generators."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mappings.formats.manifest import Manifest, optimizer_file, random_file, weights_file
from mappings.formats.safetensors import TensorEntry, read_header
from ms_models.train.checkpoints import random_state, stored_state
from ms_models.train.checkpoints.writing import Contents, verified
from ms_models.train.step import Trainer

RANDOM = re.compile(r"random-rank\d+\.json")
"""Names that `random_file` gives."""
Side = Mapping[str, bytes]
"""Configuration and tokenizer of the model, by file name."""


def side_files(trainer: Trainer) -> Side:
    """What stands beside the weights; read at the start, because the checkpoint a run resumes from is removed in time.

    Empty on all ranks but the first, which writes them.
    """
    origin = trainer.model.origin
    assert origin is not None, "a model in training was loaded from a directory"
    if trainer.mesh.rank:
        return {}
    # A checkpoint also has what each rank of that run wrote, which this run writes anew or has no rank for.
    return {name: data for name, data in origin.side_files() if not RANDOM.fullmatch(name)}


def contents(trainer: Trainer, side: Side, *, copy: bool) -> Contents:
    """The files of this rank. Every rank must call this.

    Owners of weights and of optimizer states have those, each rank its random state, the first rank what is beside.

    Args:
        trainer: model and optimizer.
        side: see `side_files`.
        copy: whether training goes on before they are written. Arrays share memory with parameters otherwise. Copies
            take 12 bytes of host memory per parameter whose weights and states this rank owns (16 with masters) until
            the checkpoint is complete.
    """
    rank, layout = trainer.mesh.rank, trainer.mesh.layout
    # Ranks may meet in these two.
    weights, states = stored_state.weights(trainer), stored_state.states(trainer)
    tensors = {}
    if layout.weight_owner(rank) == rank:
        tensors[weights_file(rank)] = weights
    if layout.state_owner(rank) == rank:
        tensors[optimizer_file(rank)] = states
    if copy:
        tensors = {file: {name: np.array(value) for name, value in own.items()} for file, own in tensors.items()}
    return Contents(tensors, {**side, random_file(rank): json.dumps(random_state.capture()).encode()})


def load(directory: Path, manifest: Manifest, trainer: Trainer, seed: int) -> None:
    """Restores optimizer and random state of this rank; the weights were loaded with the model.

    Args:
        directory: checkpoint, of any layout.
        manifest: of it.
        trainer: to restore.
        seed: of the run, for the random streams of a rank that the checkpoint has none for.

    Raises:
        UserError: a file is missing, damaged or does not fit.
    """
    rank, layout, training = trainer.mesh.rank, manifest.layout, manifest.training

    def read(owner: int) -> tuple[Path, list[TensorEntry]]:
        path = verified(directory, manifest, optimizer_file(owner))
        return path, read_header(path)[0]

    stored_state.load_states(trainer, read, training["optimizer_step"], layout)
    if rank < layout.world_size:
        path = verified(directory, manifest, random_file(rank))
        random_state.restore(json.loads(path.read_text(encoding="utf-8")))
    else:
        random_state.seed_joined(seed, rank, training["step"])
