"""Fills an adapted model from safetensors of whole tensors, or from a checkpoint of a run in any layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from mindspore import Tensor

from mappings.arrangement import Arrangement
from mappings.cutting import fill
from mappings.errors import UserError
from mappings.formats.hf_directory import read_tensors
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import Manifest, hash_file
from mappings.formats.safetensors import TensorEntry, read_bytes, read_header
from ms_models.loading import READABLE, to_float32
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.adapter.origin import BUFFERS, find_buffers
from ms_models.train.adapter.tensors import Tensors

LISTED = 8  # names shown per kind of mismatch
Part = tuple[TensorEntry, Arrangement]
"""A stored tensor, and what it consists of."""


def load(model: AdaptedModel, path: Path) -> None:
    """Sets every parameter of this rank, and the buffers.

    Args:
        model: to fill; parameters keep their dtype.
        path: file or directory of safetensors with whole tensors, or checkpoint of a run of the same model.

    Raises:
        UserError: tensors are missing, superfluous or misshapen, or a file is damaged. Nothing is loaded then.
    """
    tensors = model.place.tensors
    if (path / MANIFEST).is_file():
        parts, others = _of_checkpoint(path, tensors)
    else:
        parts, others = _of_wholes(path, tensors, [name for name, _, _ in find_buffers(model.forward_of.module)])
    values = {}
    for name, held in model.held.items():
        values[name] = np.zeros(held.shape, np.float32)
        count = sum(_take(values[name], held.arrangement, *part) for part in parts.get(name, ()))
        if count != held.arrangement.size - held.arrangement.padding:
            raise UserError(f"{path}: {name} is not there as a whole")
    for parameter in model.get_parameters():
        parameter.set_data(Tensor(values[parameter.name]).astype(parameter.dtype))
    for name, cell, key in find_buffers(model.forward_of.module):
        if name in others:
            buffer = cell._buffers[key]
            value = np.frombuffer(read_bytes(others[name]), _numpy_dtype(others[name].dtype))
            cell._buffers[key] = Tensor(value.reshape(others[name].shape)).astype(buffer.dtype)


def parts_of(directory: Path, tensors: Tensors) -> dict[str, list[Part]]:
    """The parts of each whole tensor in the weights of a checkpoint; files are compared with their hashes.

    Raises:
        UserError: a file is missing or damaged.
    """
    manifest = Manifest.read(directory)
    found: dict[str, list[Part]] = {}
    for owner in sorted({manifest.layout.weight_owner(rank) for rank in range(manifest.layout.world_size)}):
        file = directory / manifest.weights[owner]
        if not file.is_file() or hash_file(file) != manifest.files[file.name]:
            raise UserError(f"{file}: missing or damaged, its size or SHA-256 is not the manifest's")
        stored = tensors.stored(manifest.layout, owner, states=False)
        for entry in read_header(file)[0]:
            if entry.name not in stored or entry.shape != stored[entry.name].shape:
                raise UserError(f"{file}: {entry.name} {list(entry.shape)} is none of the tensors of this rank")
            known = found.setdefault(entry.name, [])
            if all(stored[entry.name] != arrangement for _, arrangement in known):  # tensor-parallel ranks hold copies
                known.append((entry, stored[entry.name]))
    return found


def _of_checkpoint(directory: Path, tensors: Tensors) -> tuple[dict[str, list[Part]], dict[str, TensorEntry]]:
    saved = Tensors.read(directory)
    if differing := _differing(saved, tensors):
        raise UserError(f"{directory}: was saved by another model: {_some(differing)}")
    others = directory / BUFFERS
    return parts_of(directory, saved), {e.name: e for e in read_header(others)[0]} if others.is_file() else {}


def _differing(saved: Tensors, tensors: Tensors) -> list[str]:
    names = [*saved.by_name, *(name for name in tensors.by_name if name not in saved.by_name)]
    return [
        f"{name} {_shape(saved, name)} there, {_shape(tensors, name)} here"
        for name in names
        if _shape(saved, name) != _shape(tensors, name)
    ]


def _shape(tensors: Tensors, name: str) -> str:
    whole = tensors.by_name.get(name)
    return "missing" if whole is None else str(list(whole.shape))


def _of_wholes(
    path: Path, tensors: Tensors, buffers: list[str]
) -> tuple[dict[str, list[Part]], dict[str, TensorEntry]]:
    if not path.exists():
        raise UserError(f"model.adapter.weights {path}: no such file or directory")
    entries = read_tensors(path) if path.is_dir() else {entry.name: entry for entry in read_header(path)[0]}
    names = {name: whole for whole in tensors.wholes for name in (whole.name, *whole.aliases)}
    chosen: dict[str, TensorEntry] = {}
    problems: dict[str, list[str]] = {"missing": [], "unexpected": [], "wrong shape": [], "not the same": []}
    problems["dtype is none of F32, F16, BF16"] = []
    for whole in tensors.wholes:
        there = [entries[name] for name in (whole.name, *whole.aliases) if name in entries]
        if not there:
            problems["missing"].append(whole.name)
            continue
        chosen[whole.name] = there[0]
        for entry in there:
            if entry.shape != whole.shape:
                problems["wrong shape"].append(f"{entry.name} {list(entry.shape)} instead of {list(whole.shape)}")
            elif entry.dtype not in READABLE:
                problems["dtype is none of F32, F16, BF16"].append(f"{entry.name} {entry.dtype}")
            elif read_bytes(entry) != read_bytes(there[0]):
                problems["not the same"].append(f"{entry.name} and {there[0].name}, which are one parameter")
    problems["unexpected"] = [name for name in entries if name not in names and name not in buffers]
    if lines := [f"{kind}: {_some(found)}" for kind, found in problems.items() if found]:
        raise UserError(f"{path}: {'; '.join(lines)}")
    parts = {name: [(entry, Arrangement.of(name, entry.shape))] for name, entry in chosen.items()}
    return parts, {name: entries[name] for name in buffers if name in entries}


def wholes(directory: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor of a checkpoint whole, fp32, by each of its names; one after the other.

    Raises:
        UserError: the checkpoint is damaged or not complete.
    """
    tensors = Tensors.read(directory)
    parts = parts_of(directory, tensors)
    for whole in tensors.wholes:
        value = np.zeros(whole.shape, np.float32)
        target = Arrangement.of(whole.name, whole.shape)
        count = sum(_take(value, target, *part) for part in parts.get(whole.name, ()))
        if count < value.size:
            raise UserError(f"{directory}: {whole.name} is not there as a whole")
        for name in (whole.name, *whole.aliases):
            yield name, value


def _take(target: np.ndarray, held: Arrangement, entry: TensorEntry, stored: Arrangement) -> int:
    mapped: np.ndarray = np.memmap(entry.path, READABLE[entry.dtype], "r", offset=entry.offset, shape=entry.shape)
    return fill(target, held, mapped, stored, lambda values: to_float32(values, entry.dtype))


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + rest


def _numpy_dtype(name: str) -> np.dtype:
    kinds: Mapping[str, str] = {
        "F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1",
    }  # fmt: skip
    if name not in kinds:
        raise UserError(f"a buffer is stored as {name}, which is none of {', '.join(kinds)}")
    return np.dtype(kinds[name])
