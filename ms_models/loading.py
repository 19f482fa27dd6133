"""Fills a model from a Hugging Face directory or a sharded checkpoint; a rank reads only its own pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mappings.errors import UserError
from mappings.families import Family
from mappings.formats import manifest as manifests
from mappings.formats.hf_directory import SINGLE, read_tensors
from mappings.formats.manifest import Manifest, hash_file
from mappings.formats.safetensors import TensorEntry, read_header
from mappings.layout import ParallelLayout
from mappings.shards import Shard
from ms_models.families.causal_lm import CausalLM
from ms_models.parallel.mesh import Mesh
from ms_models.saving import Origin

READABLE: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
LISTED = 8  # names shown per kind of mismatch


@dataclass(frozen=True)
class Source:
    """Stored tensors by name, and whether they are already this rank's pieces."""

    directory: Path
    entries: dict[str, TensorEntry]
    is_sharded: bool

    @property
    def origin(self) -> Origin:
        """What a later save needs to know; pieces of a sharded checkpoint go into one file."""
        files = {name: SINGLE if self.is_sharded else entry.path.name for name, entry in self.entries.items()}
        return Origin(self.directory, files, {name: entry.dtype for name, entry in self.entries.items()})


def open_source(directory: Path, mesh: Mesh, family: Family) -> Source:
    """Finds the tensors this rank loads from.

    Raises:
        UserError: no checkpoint, a damaged one, or one sharded for another layout or family.
    """
    if not (directory / manifests.NAME).is_file():
        return Source(directory, read_tensors(directory), is_sharded=False)
    manifest = Manifest.read(directory)
    if manifest.family != family.name:
        raise UserError(f"{directory}: manifest says family {manifest.family!r}, config.json {family.name!r}")
    _check_layout(directory, manifest.layout, mesh.layout)
    file = manifest.weights.get(manifest.layout.rank(tp=mesh.coordinates["tp"]))
    if file is None or file not in manifest.files:
        raise UserError(f"{directory / manifests.NAME}: names no weights for tp rank {mesh.coordinates['tp']}")
    path = directory / file
    if not path.is_file():
        raise UserError(f"{path}: missing, the manifest names it")
    if hash_file(path) != manifest.files[file]:
        raise UserError(f"{path}: damaged, its size or SHA-256 is not the manifest's; restore or convert it again")
    return Source(directory, {entry.name: entry for entry in read_header(path)[0]}, is_sharded=True)


def _check_layout(directory: Path, stored: ParallelLayout, wanted: ParallelLayout) -> None:
    for axis in ("tp", "pp", "vpp", "ep", "vocab_multiple"):  # dp and cp replicate weights, so they are free
        have, want = getattr(stored, axis), getattr(wanted, axis)
        if have != want:
            raise UserError(
                f"{directory}: sharded for {axis}={have}, this run has {axis}={want}; "
                "start from the Hugging Face directory, or convert it for this layout"
            )


def load_weights(model: CausalLM, source: Source, family: Family, config: Mapping[str, Any]) -> None:
    """Sets every parameter of `model` from `source`, as fp32.

    Args:
        model: the model to fill.
        source: see `open_source`.
        family: facts that say which stored names are no parameters.
        config: contents of `config.json`.

    Raises:
        UserError: one line with every missing, unexpected, misshapen or unreadable tensor. Nothing is loaded then.
    """
    problems = _compare(model.shards, source, lambda name: family.is_ignored(name, config))
    if problems:
        raise UserError(f"{source.directory}: {'; '.join(problems)}")
    parameters: dict[str, Parameter] = {parameter.name: parameter for parameter in model.get_parameters()}
    for name, shard in model.shards.items():
        parameters[name].set_data(Tensor(read_piece(source.entries[name], shard, is_piece=source.is_sharded)))
    model.origin = source.origin


def _compare(shards: Mapping[str, Shard], source: Source, is_ignored: Callable[[str], bool]) -> list[str]:
    entries = source.entries
    missing = [name for name in shards if name not in entries]
    unexpected = [name for name in entries if name not in shards and not is_ignored(name)]
    misshapen, unreadable = [], []
    for name, shard in shards.items():
        if (entry := entries.get(name)) is None:
            continue
        expected = shard.shape if source.is_sharded else shard.parameter.shape
        if entry.shape != expected:
            misshapen.append(f"{name} {list(entry.shape)} instead of {list(expected)}")
        if entry.dtype not in READABLE:
            unreadable.append(f"{name} {entry.dtype}")
    kinds = {
        "missing": missing,
        "unexpected": unexpected,
        "wrong shape": misshapen,
        "dtype is none of F32, F16, BF16": unreadable,
    }
    return [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + rest


def read_piece(entry: TensorEntry, shard: Shard, *, is_piece: bool) -> np.ndarray:
    """One rank's piece of a stored tensor as fp32, padding included.

    The file is mapped, so that only the pages of the piece are read. bf16 widens exactly: its bits are the upper half
    of an fp32.

    Args:
        entry: the stored tensor; F32, F16 or BF16.
        shard: the piece.
        is_piece: the stored tensor is the piece itself, not the whole parameter.
    """
    whole = np.memmap(entry.path, READABLE[entry.dtype], "r", offset=entry.offset, shape=entry.shape)
    cut = shard.parameter.cut
    if is_piece or cut is None:
        return to_float32(whole, entry.dtype)
    index = (slice(None),) * cut + (slice(shard.start, shard.stop),)
    piece = to_float32(whole[index], entry.dtype)
    if not shard.padding:
        return piece
    width = [(0, 0)] * piece.ndim
    width[cut] = (0, shard.padding)
    return np.pad(piece, width)


def to_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """A fresh contiguous fp32 array of stored values; `dtype` is the safetensors name (BF16 comes as uint16)."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.array(values, np.float32, order="C")
