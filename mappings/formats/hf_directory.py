"""A Hugging Face model directory: its `config.json`, and every tensor of its safetensors shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.safetensors import SafetensorsError, TensorEntry, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        UserError: missing, unreadable, not JSON or no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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


def read_tensors(directory: Path) -> dict[str, TensorEntry]:
    """Every tensor of the directory by name, checked against the index.

    Raises:
        UserError: no safetensors; an index that leaves the directory, or disagrees with the shards.
    """
    index_path, single = directory / INDEX, directory / SINGLE
    if index_path.is_file():
        return _read_sharded(directory, index_path)
    if single.is_file():
        return {entry.name: entry for entry in read_header(single)[0]}
    if any(directory.glob("pytorch_model*.bin")):
        raise UserError(f"{directory}: holds only pickled weights (.bin); save them as safetensors first")
    raise UserError(f"{directory}: neither {SINGLE} nor {INDEX} found")


def _read_sharded(directory: Path, index_path: Path) -> dict[str, TensorEntry]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise UserError(f"{index_path}: 'weight_map' must map tensor names to file names")
    tensors: dict[str, TensorEntry] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise UserError(f"{index_path}: file {file!r} is outside the directory")
        path = directory / file
        if not path.is_file():
            raise UserError(f"{index_path}: names {file!r}, which is missing")
        for entry in read_header(path)[0]:
            if entry.name in tensors:
                raise SafetensorsError(path, f"also stored in {tensors[entry.name].path.name}", entry.name)
            if weight_map.get(entry.name) != file:
                raise SafetensorsError(path, f"the index places it in {weight_map.get(entry.name)!r}", entry.name)
            tensors[entry.name] = entry
    if missing := sorted(set(weight_map) - set(tensors)):
        some = ", ".join(missing[:5])
        raise UserError(f"{index_path}: tensors named but stored nowhere: {some} ({len(missing)} in all)")
    return tensors
