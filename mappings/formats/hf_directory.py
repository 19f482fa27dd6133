"""A Hugging Face model directory: its `config.json`, and every tensor of its safetensors shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.regular_files import is_there, open_regular
from mappings.formats.safetensors import SafetensorsError, TensorEntry, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        UserError: missing, unreadable, not JSON or no object.
    """
    try:
        with open_regular(path) as file:
            value = json.loads(file.read().decode("utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, bad UTF-8, numbers of thousands of digits
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object, found {type(value).__name__}")
    return value


def read_config(directory: Path) -> dict[str, Any]:
    """`config.json` of a model directory.

    Raises:
        UserError: no directory, or no readable `config.json` in it.
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory")
    return read_json(directory / "config.json")


@dataclass(frozen=True)
class HfFile:
    """One safetensors file: its tensors in offset order, and its `__metadata__`."""

    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class HfWeights:
    """The weights of a directory: its files by name, and the index without its `weight_map` (None: one file)."""

    files: Mapping[str, HfFile]
    index: Mapping[str, Any] | None

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor by name; names are unique over the files."""
        return {entry.name: entry for file in self.files.values() for entry in file.entries}


def read_weights(directory: Path) -> HfWeights:
    """Headers of all weights of the directory, checked against the index.

    Raises:
        UserError: no safetensors; an index that leaves the directory, or disagrees with the shards; weights that the
            index does not name.
    """
    index_path, single = directory / INDEX, directory / SINGLE
    if is_there(index_path):
        weights = _read_sharded(directory, index_path)
    elif is_there(single):
        entries, metadata = read_header(single)
        weights = HfWeights({SINGLE: HfFile(tuple(entries), metadata)}, None)
    elif any(directory.glob("pytorch_model*.bin")):
        raise UserError(f"{directory}: holds only pickled weights (.bin); save them as safetensors first")
    else:
        raise UserError(f"{directory}: neither {SINGLE} nor {INDEX} found")
    if stray := sorted(path.name for path in directory.glob("model*.safetensors") if path.name not in weights.files):
        raise UserError(f"{directory}: {', '.join(stray)} belongs to no index; remove it or restore its {INDEX}")
    return weights


def read_tensors(directory: Path) -> dict[str, TensorEntry]:
    """Every tensor of the directory by name; see `read_weights`."""
    return read_weights(directory).tensors


def _read_sharded(directory: Path, index_path: Path) -> HfWeights:
    index = read_json(index_path)
    weight_map = index.pop("weight_map", None)
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise UserError(f"{index_path}: 'weight_map' must map tensor names to file names")
    if not weight_map:
        raise UserError(f"{index_path}: 'weight_map' is empty")
    if not isinstance(index.get("metadata") or {}, dict):
        raise UserError(f"{index_path}: 'metadata' must be an object")
    files: dict[str, HfFile] = {}
    owner: dict[str, str] = {}
    names = sorted(set(weight_map.values()))
    for name in names:
        if not name or name in (".", "..") or Path(name).name != name or not name.isprintable():
            raise UserError(f"{index_path}: file {name!r} is outside the directory")
        path = directory / name
        if not path.is_file():
            absent = [other for other in names if not (directory / other).is_file()]
            more = f" (and {len(absent) - 1} more of {len(names)} files)" if len(absent) > 1 else ""
            raise UserError(f"{index_path}: names {name!r}, which is missing{more}")
        entries, metadata = read_header(path)
        for entry in entries:
            if entry.name in owner:
                raise SafetensorsError(path, f"also stored in {owner[entry.name]}", entry.name)
            if weight_map.get(entry.name) != name:
                where = weight_map.get(entry.name)
                problem = "is not in the index" if where is None else f"the index places it in {where!r}"
                raise SafetensorsError(path, problem, entry.name)
            owner[entry.name] = name
        files[name] = HfFile(tuple(entries), metadata)
    if missing := sorted(set(weight_map) - set(owner)):
        some = ", ".join(missing[:5])
        raise UserError(f"{index_path}: tensors named but stored nowhere: {some} ({len(missing)} in all)")
    return HfWeights(files, index)
