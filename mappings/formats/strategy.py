"""MindSpore's strategy files: how each parameter was cut over the ranks of a run, as protobuf or as its JSON twin.

The protobuf is what MindSpore calls `ParallelStrategyMap` (node_strategy.proto). A merged file holds all pipeline
stages; there a name carries its stage in front (`0-embedding.weight`). What a layout means for a tensor is in
`mappings/formats/strategy_slices.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.protobuf import ProtobufError, bytes_field, fields, integers, number_field, number_fields, signed
from mappings.formats.regular_files import open_regular

MAX_BYTES = 1 << 30  # a strategy of a million parameters is a tenth of it
Rows = tuple[tuple[int, ...], ...]


class StrategyError(UserError):
    """A strategy file that breaks the format; the message names the file and, where there is one, the parameter."""

    def __init__(self, path: Path, problem: str, parameter: str | None = None) -> None:
        where = f"{path}: " + (f"parameter {parameter!r}: " if parameter is not None else "")
        super().__init__(f"{where}{problem}")


@dataclass(frozen=True)
class TensorLayout:
    """How one parameter was cut. Repeated messages of the file are kept as they are, so that it can be rewritten."""

    dev_matrix: Rows
    """One row: the sizes of the mesh axes, the last one fastest over the ranks."""
    tensor_map: Rows
    """One row: for each axis of the tensor the mesh axis that cuts it, counted from the last (0), or -1. Several
    rows: for each axis of the tensor the mesh axes that cut it, outermost first."""
    param_split_shape: Rows = ((),)
    indices_offset: Rows = ((),)
    field: int = 0
    """Rows of an embedding that is cut unevenly; 0 otherwise."""
    opt_weight_shard_step: int = 0
    """Distance in ranks between the pieces of a parameter that the parallel optimizer cuts once more."""
    opt_weight_shard_size: int = 0
    """Number of those pieces; -1: as many as there are copies, 0: it is not cut."""


@dataclass(frozen=True)
class Operator:
    """How the inputs of one operator were cut; nothing here depends on it, but MindSpore wants it in the file."""

    name: str
    stage: int
    strategy: Rows = ()


@dataclass(frozen=True)
class Strategy:
    """Contents of one file."""

    current_stage: int
    operators: tuple[Operator, ...]
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)
    """By parameter, in stored order; with `stage-` in front in a merged file."""


def read_strategy(path: Path) -> Strategy:
    """A strategy file; JSON if its name ends so, else protobuf, as MindSpore decides it.

    Raises:
        StrategyError: the file is missing, unreadable or malformed.
    """
    if path.suffix == ".json":
        return _from_json(path, read_json(path))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise StrategyError(path, "is too large for a strategy file")
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise StrategyError(path, f"cannot be read ({error.strerror})") from error
    return decode_strategy(data, path)


def decode_strategy(data: bytes, path: Path) -> Strategy:
    """A strategy from its protobuf form.

    Raises:
        StrategyError: the bytes are no strategy; `path` is named.
    """
    try:
        found = _message(data, {1: "number", 2: "messages", 3: "messages"})
        operators = tuple(_operator(item) for item in found[2])
        layouts: dict[str, TensorLayout] = {}
        for item in found[3]:
            name, layout = _item(item)
            if name in layouts:
                raise StrategyError(path, "occurs twice", name)
            layouts[name] = layout
    except (ProtobufError, UnicodeDecodeError) as error:
        raise StrategyError(path, f"is no strategy file, or a damaged one ({error})") from error
    return Strategy(found[1], operators, layouts)


def encode_strategy(strategy: Strategy) -> bytes:
    """The protobuf form, byte for byte as MindSpore serialises it."""
    parts = [number_field(1, strategy.current_stage)]
    for operator in strategy.operators:
        body = number_field(1, operator.stage) + _rows(2, operator.strategy)
        parts.append(bytes_field(2, bytes_field(1, operator.name.encode()) + bytes_field(2, body)))
    for name, layout in strategy.layouts.items():
        body = b"".join(
            (
                _rows(1, layout.dev_matrix),
                _rows(2, layout.tensor_map),
                _rows(3, layout.param_split_shape),
                _rows(4, layout.indices_offset),
                number_field(5, layout.field),
                number_field(6, layout.opt_weight_shard_step),
                number_field(7, layout.opt_weight_shard_size),
            )
        )
        parts.append(bytes_field(3, bytes_field(1, name.encode()) + bytes_field(2, body)))
    return b"".join(parts)


def strategy_json(strategy: Strategy) -> str:
    """The JSON twin.

    Raises:
        ValueError: an axis of a tensor is cut by several mesh axes, which MindSpore's JSON reader does not take.
    """
    layouts = {}
    for name, layout in strategy.layouts.items():
        if len(layout.tensor_map) != 1 or len(layout.dev_matrix) != 1:
            raise ValueError(f"parameter {name!r}: the JSON form has no place for {layout.tensor_map}")
        layouts[name] = {
            "dev_matrix": list(layout.dev_matrix[0]),
            "tensor_map": list(layout.tensor_map[0]),
            "param_split_shape": [size for row in layout.param_split_shape for size in row],
            "indices_offset": [offset for row in layout.indices_offset for offset in row],
            "field": layout.field,
            "opt_weight_shard_step": layout.opt_weight_shard_step,
            "opt_weight_shard_size": layout.opt_weight_shard_size,
        }
    operators = {
        operator.name: {"stage": operator.stage, "parallel_strategy": [list(row) for row in operator.strategy]}
        for operator in strategy.operators
    }
    body = {
        "current_stage": strategy.current_stage,
        "parallel_strategy_item": operators,
        "parallel_layout_item": layouts,
    }
    return json.dumps(body)


def merged(strategies: Iterable[Strategy]) -> Strategy:
    """The files of all pipeline stages as one, the stage in front of each name; one file per stage counts."""
    operators: list[Operator] = []
    layouts: dict[str, TensorLayout] = {}
    stages = set()
    for strategy in strategies:
        stage = strategy.operators[0].stage if strategy.operators else strategy.current_stage
        if stage in stages:
            continue
        stages.add(stage)
        operators += strategy.operators
        layouts |= {f"{stage}-{name}": layout for name, layout in strategy.layouts.items()}
    return Strategy(1, tuple(operators), layouts)


def _message(data: bytes, schema: Mapping[int, str]) -> dict[int, Any]:
    """Values by field number: a required `number` or `bytes`, or lists of `numbers` or `messages`."""
    found: dict[int, Any] = {number: [] for number, kind in schema.items() if kind.endswith("s") and kind != "bytes"}
    for number, value in fields(data):
        kind = schema.get(number)
        if kind == "numbers":
            found[number] += [signed(item) for item in integers(value)]
        elif kind == "number" and isinstance(value, int):
            found[number] = signed(value)
        elif kind == "bytes" and isinstance(value, bytes):
            found[number] = value
        elif kind == "messages" and isinstance(value, bytes):
            found[number].append(value)
        else:
            raise ProtobufError(f"unexpected field {number}")
    if missing := sorted(set(schema) - set(found)):
        raise ProtobufError(f"field {missing[0]} is missing")
    return found


def _named(data: bytes) -> tuple[str, bytes]:
    found = _message(data, {1: "bytes", 2: "bytes"})
    return found[1].decode("utf-8"), found[2]


def _operator(data: bytes) -> Operator:
    name, body = _named(data)
    found = _message(body, {1: "number", 2: "messages"})
    return Operator(name, found[1], _numbers(found[2]))


def _item(data: bytes) -> tuple[str, TensorLayout]:
    name, body = _named(data)
    schema = {1: "messages", 2: "messages", 3: "messages", 4: "messages", 5: "number", 6: "number", 7: "number"}
    found = _message(body, schema)
    return name, TensorLayout(
        _numbers(found[1]), _numbers(found[2]), _numbers(found[3]), _numbers(found[4]), found[5], found[6], found[7]
    )


def _numbers(messages: list[bytes]) -> Rows:
    return tuple(tuple(_message(message, {1: "numbers"})[1]) for message in messages)


def _rows(number: int, rows: Rows) -> bytes:
    return b"".join(bytes_field(number, number_fields(1, row)) for row in rows)


def _from_json(path: Path, body: Mapping[str, Any]) -> Strategy:
    def get(source: Any, key: str, check: Callable[[Any], bool], default: Any = None) -> Any:
        value = source.get(key, default) if isinstance(source, dict) else None
        if value is None or not check(value):
            raise ValueError(f"{key} is {'missing' if value is None else repr(value)}")
        return value

    def number(value: Any) -> bool:
        return type(value) is int

    def numbers(value: Any) -> bool:
        return isinstance(value, list) and all(type(item) is int for item in value)

    def is_object(value: Any) -> bool:
        return isinstance(value, dict)

    parameter = None
    try:
        operators = []
        for name, item in get(body, "parallel_strategy_item", is_object, {}).items():
            rows = get(item, "parallel_strategy", lambda rows: isinstance(rows, list) and all(map(numbers, rows)))
            operators.append(Operator(name, get(item, "stage", number), tuple(map(tuple, rows))))
        layouts = {}
        for parameter, item in get(body, "parallel_layout_item", is_object).items():
            tensor_map = item.get("tensor_map") if isinstance(item, dict) else None
            if isinstance(tensor_map, list) and any(isinstance(axis, list) for axis in tensor_map):
                rows = [axis if isinstance(axis, list) else [axis] for axis in tensor_map]
                if not all(map(numbers, rows)):
                    raise ValueError(f"tensor_map is {tensor_map!r}")
            else:
                rows = [get(item, "tensor_map", numbers)]
            layouts[parameter] = TensorLayout(
                (tuple(get(item, "dev_matrix", numbers)),),
                tuple(map(tuple, rows)),
                (tuple(get(item, "param_split_shape", numbers, [])),),
                (tuple(get(item, "indices_offset", numbers, [])),),
                *(get(item, key, number) for key in ("field", "opt_weight_shard_step", "opt_weight_shard_size")),
            )
        parameter = None
        return Strategy(get(body, "current_stage", number, 0), tuple(operators), layouts)
    except ValueError as error:
        raise StrategyError(path, f"is no strategy file ({error})", parameter) from error
