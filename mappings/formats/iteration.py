"""The directory that MindSpore Transformers 2.x saves per step: `iteration_%08d` with `metadata.json`, `common.json`.

`metadata.json` says for each parameter its whole shape, how the mesh cuts it (a layout with five keys, whose *order*
its reader relies on) and which pieces there are; and for each piece the files that hold it. A piece is named by one
number: its indices along the tensor's axes, counted row by row. Beside the directories
`latest_checkpointed_iteration.txt` names the newest step.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.regular_files import is_there, open_regular

TRACKER = "latest_checkpointed_iteration.txt"
METADATA, COMMON = "metadata.json", "common.json"
MODEL, OPTIMIZER = "model", "opt"
FOLDER = re.compile("iteration_([0-9]{8,})")
LAYOUT_KEYS = ["device_matrix", "tensor_map", "interleaved_parallel", "alias_name", "rank_list"]
COMMON_KEYS = (
    "epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples", "ckpt_status",
)  # fmt: skip


def folder(step: int) -> str:
    """Name of the directory of a step."""
    return f"iteration_{step:08d}"


def file_name(kind: str, rank: int, ranks: int, prefix: str | None = None) -> str:
    """Name of the weights (`MODEL`) or of the optimizer state (`OPTIMIZER`) of a rank."""
    return f"{prefix + '-' if prefix else ''}{kind}-{rank:07d}-{ranks:07d}.safetensors"


def is_optimizer_file(name: str) -> bool:
    """Whether a file name is that of optimizer state."""
    return re.fullmatch(r"(?:.+-)?opt-[0-9]+-[0-9]+\.safetensors", name) is not None


@dataclass(frozen=True)
class MeshLayout:
    """How one tensor is cut over the ranks of a stage."""

    device_matrix: tuple[int, ...]
    """Sizes of the mesh axes, the last one fastest over the ranks."""
    tensor_map: tuple[tuple[int, ...], ...]
    """For each axis of the tensor the mesh axes that cut it, counted from the last (0), outermost first."""
    alias_name: tuple[str, ...]
    rank_list: tuple[int, ...]
    interleaved_parallel: bool = False

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of pieces along each axis of the tensor."""
        return tuple(math.prod(self.device_matrix[-1 - axis] for axis in one) for one in self.tensor_map)


@dataclass(frozen=True)
class Holder:
    """A file that holds a piece."""

    file: str
    rank: int
    group: tuple[int, ...]
    """Ranks to which the piece belongs."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of `metadata.json`."""

    dtype: str
    """MindSpore's name, `BFloat16`."""
    shape: tuple[int, ...]
    pieces: tuple[int, ...]
    """Number of pieces along each axis."""
    layout: MeshLayout | None
    local_shapes: Mapping[int, tuple[int, ...]]
    """Shape of each piece by its number."""
    holders: Mapping[int, tuple[Holder, ...]]
    """Files of each piece by its number."""
    replica_id: int | tuple[int, ...] = 0


def read_metadata(path: Path) -> dict[str, Parameter]:
    """Parameters of a `metadata.json`.

    Raises:
        UserError: unreadable or malformed; the parameter is named.
    """
    body = read_json(path)
    tensors, storage = body.get("state_dict_metadata"), body.get("storage_data")
    if not isinstance(tensors, dict) or not isinstance(storage, dict):
        raise UserError(f"{path}: state_dict_metadata and storage_data must be objects")
    holders: dict[str, dict[int, tuple[Holder, ...]]] = {}
    for key, value in storage.items():
        try:
            name, number = _piece_of(key)
            if number in holders.get(name, ()):
                raise ValueError("names a piece again")
            holders.setdefault(name, {})[number] = tuple(_holder(item) for item in value)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: storage_data {key!r} is malformed ({error})") from error
    result = {}
    for name, value in tensors.items():
        try:
            result[name] = _parameter(value, holders.pop(name, {}))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: parameter {name!r} is malformed ({error})") from error
    if holders:
        raise UserError(f"{path}: storage_data names {', '.join(sorted(holders)[:5])}, which is no parameter")
    return result


def metadata_text(parameters: Mapping[str, Parameter]) -> str:
    """Contents of `metadata.json`, keys in the order in which MindSpore Transformers writes and reads them."""
    tensors: dict[str, Any] = {}
    storage: dict[str, Any] = {}
    for name, parameter in parameters.items():
        layout = parameter.layout
        tensors[name] = {
            "properties": {
                "dtype": parameter.dtype,
                "replica_id": parameter.replica_id,
                "allow_shape_mismatch": False,
                "allow_to_save": True,
            },
            "global_shape": parameter.shape,
            "axis_fragmentations": parameter.pieces,
            "layout": None if layout is None else _layout_body(layout),
            "chunk": [
                {"global_offset": [number], "local_shape": shape} for number, shape in parameter.local_shapes.items()
            ],
        }
        for number, holders in parameter.holders.items():
            storage[repr((name, (number,)))] = [
                {"file_name": holder.file, "storage_rank": holder.rank, "rank_group": holder.group}
                for holder in holders
            ]
    body = {"state_dict_metadata": tensors, "storage_data": storage}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def common_text(values: Mapping[str, Any]) -> str:
    """Contents of `common.json`; keys that are not given are null.

    Raises:
        ValueError: an unknown key, which MindSpore Transformers would refuse.
    """
    if unknown := sorted(set(values) - set(COMMON_KEYS)):
        raise ValueError(f"{COMMON} has no {', '.join(unknown)}")
    return json.dumps({key: values.get(key) for key in COMMON_KEYS}, ensure_ascii=False, indent=4)


def latest(directory: Path) -> Path:
    """The directory of the newest step, given it or its parent.

    Raises:
        UserError: there is none, or the tracker file is malformed or names one that is missing.
    """
    tracker = directory / TRACKER
    if not is_there(tracker):
        return directory
    try:
        with open_regular(tracker) as file:
            step = int(file.read().decode("utf-8").strip())
    except OSError as error:
        raise UserError(f"{tracker}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{tracker}: must hold the number of a step ({error})") from error
    found = directory / folder(step)
    if step < 0 or not found.is_dir():
        raise UserError(f"{tracker}: names step {step}, but {found.name} is missing")
    return found


def _layout_body(layout: MeshLayout) -> dict[str, Any]:
    axes = [axes if len(axes) > 1 else (axes[0] if axes else -1) for axes in layout.tensor_map]
    values = [layout.device_matrix, axes, layout.interleaved_parallel, layout.alias_name, layout.rank_list]
    return dict(zip(LAYOUT_KEYS, values, strict=True))


def _piece_of(key: str) -> tuple[str, int]:
    """Name and number of a piece from the text of the Python tuple `(name, (number,))`."""
    try:
        name, numbers = ast.literal_eval(key)
        (number,) = numbers
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("is no pair of a name and a piece") from error
    if not isinstance(name, str) or type(number) is not int or number < 0:
        raise ValueError("is no pair of a name and a piece")
    return name, number


def _holder(value: Any) -> Holder:
    file, rank, group = value["file_name"], value["storage_rank"], value.get("rank_group", [value["storage_rank"]])
    if not isinstance(file, str) or not file or Path(file).name != file or file == ".." or not file.isprintable():
        raise ValueError(f"file {file!r} is outside the directory")
    return Holder(file, _number(rank), _numbers(group))


def _parameter(value: Any, holders: dict[int, tuple[Holder, ...]]) -> Parameter:
    shape = _numbers(value["global_shape"])
    chunks: dict[int, tuple[int, ...]] = {}
    for chunk in value["chunk"]:
        (number,) = _numbers(chunk["global_offset"])
        chunks[number] = _numbers(chunk["local_shape"])
    if lost := sorted(set(holders) - set(chunks)):
        raise ValueError(f"piece {lost[0]} is stored but not listed")
    if lost := sorted(set(chunks) - {number for number, found in holders.items() if found}):
        raise ValueError(f"piece {lost[0]} is stored nowhere")
    properties = value["properties"]
    if not isinstance(properties["dtype"], str):
        raise ValueError(f"dtype is {properties['dtype']!r}")
    replica = properties.get("replica_id", 0)
    layout = value["layout"]
    return Parameter(
        properties["dtype"],
        shape,
        _numbers(value["axis_fragmentations"]),
        None if layout is None else _layout(layout),
        chunks,
        holders,
        _numbers(replica) if isinstance(replica, list) else _number(replica),
    )


def _layout(value: Any) -> MeshLayout:
    if list(value) != LAYOUT_KEYS:
        raise ValueError(f"layout must have exactly {', '.join(LAYOUT_KEYS)}, in this order")
    matrix, axes, interleaved, alias, ranks = value.values()
    if not isinstance(axes, list) or not isinstance(alias, list) or not all(isinstance(name, str) for name in alias):
        raise ValueError("layout has no lists of axes and names")
    if not isinstance(interleaved, bool):
        raise ValueError(f"interleaved_parallel is {interleaved!r}")
    tensor_map = [_checked(axis if isinstance(axis, list) else [axis], lambda n: n >= -1) for axis in axes]
    split = tuple(tuple(axis for axis in one if axis != -1) for one in tensor_map)
    sizes = _numbers(matrix)
    if any(axis >= len(sizes) for one in split for axis in one):
        raise ValueError(f"tensor_map {axes} does not fit device_matrix {matrix}")
    return MeshLayout(sizes, split, tuple(alias), _numbers(ranks), interleaved)


def _numbers(values: Any) -> tuple[int, ...]:
    return _checked(values, lambda n: n >= 0)


def _number(value: Any) -> int:
    return _numbers([value])[0]


def _checked(values: Any, allowed: Callable[[int], bool]) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(n) is int and allowed(n) and n < 2**63 for n in values):
        raise ValueError(f"{values!r} is no list of whole numbers")
    return tuple(values)
