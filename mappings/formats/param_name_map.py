"""`param_name_map.json` of a full MindSpore checkpoint: which file holds which parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json

NAME = "param_name_map.json"
HYPER = "hyper_param.safetensors"  # entries that are no parameters of the network: global_step, loss_scale


def part_file(number: int) -> str:
    """Name of one weights file."""
    return f"part{number}.safetensors"


def read_param_name_map(path: Path) -> dict[str, str]:
    """File names by parameter; the older form without `weight_map` is taken too.

    Raises:
        UserError: the file is unreadable or malformed, or names a file outside its directory.
    """
    body = read_json(path)
    names = body.get("weight_map", body)
    if not isinstance(names, dict) or not names or not all(isinstance(file, str) for file in names.values()):
        raise UserError(f"{path}: must map parameter names to file names")
    for file in sorted(set(names.values())):
        if not file or file in (".", "..") or Path(file).name != file or not file.isprintable() or "\\" in file:
            raise UserError(f"{path}: file {file!r} is outside the directory")
    return names


def param_name_map_text(files: Mapping[str, str], total_bytes: int) -> str:
    """Contents of the file, as MindSpore writes it."""
    return json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": dict(files)}, indent=4)
