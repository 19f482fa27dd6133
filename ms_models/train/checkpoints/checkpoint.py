"""Saves and restores the whole state of a run: weights, moments, random generators, position in the data."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import INDEX, read_config
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import Manifest, fsync_directory, hash_file, optimizer_file, random_file, weights_file
from mappings.formats.safetensors import TensorEntry, build_header, read_header
from ms_models.train.checkpoints import random_state, stored_state
from ms_models.train.checkpoints.run_directory import commit, staging_name, step_name
from ms_models.train.config import versions
from ms_models.train.gradients import agree
from ms_models.train.step import Trainer

ATTEMPTS = 2
NO_SIDE_FILE = (".safetensors", ".bin", ".pt", ".pth", INDEX, MANIFEST)


def save(run: Path, step: int, trainer: Trainer, training: Mapping[str, Any], *, keep: int) -> Path:
    """Writes `step_NNNNNNNN`; every rank must call it. One retry after a failure of the file system.

    Owners of weights and of optimizer states write those, each rank its random state, the first rank the rest.

    Args:
        run: run directory.
        step: optimizer steps done.
        trainer: model and optimizer.
        training: plain data for the manifest.
        keep: complete checkpoints to keep.

    Returns:
        The new checkpoint directory, the same on every rank.

    Raises:
        UserError: it could not be written, on this or another rank; older checkpoints are untouched.
    """
    mesh, staging = trainer.mesh, run / staging_name(step)
    reasons: list[str] = []
    # Ranks may meet here, so outside of what can fail.
    weights, states = stored_state.weights(trainer), stored_state.states(trainer)
    stages: tuple[tuple[Callable[[], None], bool], ...] = (
        (lambda: _clear(staging), mesh.rank == 0),
        (lambda: _write_rank(staging, trainer, weights, states), True),
        (
            lambda: _write_manifest(
                staging, trainer, {**training, "step": step, "optimizer_step": trainer.optimizer.step}
            ),
            mesh.rank == 0,
        ),
        (lambda: commit(run, step, keep), mesh.rank == 0),
    )
    for _ in range(ATTEMPTS):
        # Every stage ends in agreement, which is also the barrier before the next one.
        if all(_all_ranks(stage, is_mine, reasons, trainer) for stage, is_mine in stages):
            return run / step_name(step)
    reason = "; ".join(dict.fromkeys(reasons)) or "another rank failed"
    raise UserError(f"{run}: checkpoint of step {step} could not be saved in {ATTEMPTS} attempts: {reason}")


def load(directory: Path, manifest: Manifest, trainer: Trainer) -> None:
    """Restores optimizer and random state of this rank; the weights were loaded with the model.

    Raises:
        UserError: a file is missing, damaged or does not fit.
    """
    mesh = trainer.mesh

    def read(rank: int) -> tuple[Path, list[TensorEntry]]:
        path = _verified(directory, manifest, optimizer_file(rank))
        return path, read_header(path)[0]

    stored_state.load_states(trainer, read, manifest.training["optimizer_step"])
    path = _verified(directory, manifest, random_file(mesh.rank))
    random_state.restore(json.loads(path.read_text(encoding="utf-8")))


def _all_ranks(stage: Callable[[], None], is_mine: bool, reasons: list[str], trainer: Trainer) -> bool:
    failed = False
    if is_mine:
        try:
            stage()
        except OSError as error:
            failed = True
            reasons.append(f"{error.strerror or error} ({error.filename})")
    return not agree(failed, trainer.mesh)


def _clear(staging: Path) -> None:
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)


def _write_rank(
    staging: Path, trainer: Trainer, weights: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
) -> None:
    rank, layout = trainer.mesh.rank, trainer.mesh.layout
    if layout.weight_owner(rank) == rank:
        _write_tensors(staging / weights_file(rank), weights)
    if layout.state_owner(rank) == rank:
        _write_tensors(staging / optimizer_file(rank), states)
    _write(staging / random_file(rank), json.dumps(random_state.capture()).encode())


def _write_manifest(staging: Path, trainer: Trainer, training: Mapping[str, Any]) -> None:
    origin, layout = trainer.model.origin, trainer.mesh.layout
    assert origin is not None, "a model in training was loaded from a directory"
    for path in sorted(origin.directory.iterdir()):
        is_side_file = path.is_file() and not path.name.endswith(NO_SIDE_FILE) and not path.name.startswith(".")
        if is_side_file and not (staging / path.name).exists():
            _write(staging / path.name, origin.side_file(path))
    fsync_directory(staging)
    Manifest(
        family=family_for_config(read_config(staging)).name,
        layout=layout,
        weights={rank: weights_file(layout.weight_owner(rank)) for rank in range(layout.world_size)},
        files={path.name: hash_file(path) for path in sorted(staging.iterdir())},
        versions=versions(),
        training=dict(training),
    ).write(staging)


def _write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    header, _ = build_header([(name, "F32", value.shape) for name, value in tensors.items()], {"format": "pt"})
    _write(path, header, *(np.ascontiguousarray(value, "<f4").data for value in tensors.values()))


def _write(path: Path, *pieces: bytes | memoryview) -> None:
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _verified(directory: Path, manifest: Manifest, name: str) -> Path:
    path, record = directory / name, manifest.files.get(name)
    if record is None or not path.is_file():
        raise UserError(f"{path}: missing, so this checkpoint cannot be resumed with this layout")
    if hash_file(path) != record:
        raise UserError(f"{path}: damaged, its size or SHA-256 is not the manifest's")
    return path
