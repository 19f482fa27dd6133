"""Weight states: a copy of a model directory in which every parameter is off its value, made once for both sides.

A norm weight of one, a bias of zero or attention that is nearly uniform hides faults: nothing depends on them.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config, read_weights
from mappings.formats.safetensors import TensorEntry
from migrate.parity.stored_weights import DTYPES

STORED, INIT, TRAINED = "stored", "init", "trained"
STATES = (STORED, INIT, TRAINED)
INIT_STD = 0.02
"""Of most configurations' `initializer_range`, where one says nothing."""
SHARP = 2.0
"""Gain of projections into and out of heads in the state `trained`: scores of attention then spread over units."""
COMMON = 0.5
"""Part of a matrix that all its rows share, in the state `trained`: what it returns has a direction of its own, as
after training, and a router prefers some experts."""


def perturbed(directory: Path, target: Path, state: str, seed: int) -> Path:
    """The directory to compare: itself, or a copy with other weights.

    * `init`: every parameter plus noise of `initializer_range`.
    * `trained`: matrices plus noise that keeps the size of what passes them (deviation 1 / sqrt(inputs), twice that in
      attention) with a part common to all rows; vectors times exp(0.3 z), plus 0.1 z for what is zero there.

    Files are copied, and tensor after tensor changed in place: no more than one tensor is in memory.

    Args:
        directory: Hugging Face model directory.
        target: new directory.
        state: one of `STATES`.
        seed: of the noise; it depends on nothing else but the names and shapes.

    Raises:
        UserError: unknown state, or a tensor of another dtype than F32, F16 and BF16.
    """
    if state not in STATES:
        raise UserError(f"--state: {state!r} is none of {', '.join(STATES)}")
    if state == STORED:
        return directory
    config = read_config(directory)
    family = family_for_config(config, str(directory / "config.json"))
    weights = read_weights(directory)
    target.mkdir()
    for path in directory.iterdir():
        if path.is_file() and (path.suffix in (".json", ".safetensors")):
            shutil.copyfile(path, target / path.name)
    attention = {
        atom.name.partition("#")[0] for atom in family.atoms(config).values() if atom.layer_class == "attention"
    }
    for entry in weights.tensors.values():
        if entry.dtype not in DTYPES:
            if entry.dtype.startswith(("I", "U", "BOOL")):
                continue  # positions that old checkpoints keep
            raise UserError(f"{entry.path}: {entry.name} is {entry.dtype}; --state moves F32, F16 and BF16")
        # A copy that a tied model stores beside the parameter must stay its copy.
        name = family.tied_to(entry.name, config) or entry.name
        _move(target / entry.path.name, entry, name, state, seed, config, entry.name in attention)
    return target


def _move(
    path: Path, entry: TensorEntry, name: str, state: str, seed: int, config: Mapping[str, Any], attends: bool
) -> None:
    shape = tuple(entry.shape)
    stored = np.memmap(path, DTYPES[entry.dtype], "r+", offset=entry.offset, shape=shape or (1,))
    raw = np.array(stored)
    values = (raw.astype(np.uint32) << 16).view(np.float32) if entry.dtype == "BF16" else raw.astype(np.float32)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *name.encode()])))
    if state == INIT:
        std = config.get("initializer_range", INIT_STD)
        values += (std if isinstance(std, float) and std > 0 else INIT_STD) * rng.standard_normal(
            values.shape, np.float32
        )
    elif values.ndim < 2:
        values *= np.exp(0.3 * rng.standard_normal(values.shape, np.float32))
        values += 0.1 * rng.standard_normal(values.shape, np.float32)
    else:
        std = (SHARP if attends else 1.0) / math.sqrt(values.shape[-1])
        common = rng.standard_normal((*values.shape[:-2], 1, values.shape[-1]), np.float32)
        weights = rng.standard_normal((*values.shape[:-1], 1), np.float32)
        values += std * (rng.standard_normal(values.shape, np.float32) + COMMON * common * weights)
    stored[...] = _rounded(values, entry.dtype)
    stored.flush()


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """In the stored dtype; bf16 to nearest even."""
    if dtype != "BF16":
        return values.astype(DTYPES[dtype])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
