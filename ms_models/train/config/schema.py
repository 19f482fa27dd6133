"""Plain data into typed dataclasses: unknown keys, missing keys and wrong types are errors that name the field."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.train.config.problems import Problems

T = TypeVar("T")


def build(cls: type[T], values: Any, where: str = "") -> T:
    """An instance of a dataclass from a mapping, recursively.

    Args:
        cls: dataclass whose fields are int, float, bool, str, Literal, tuple, Optional or other dataclasses.
        values: mapping of field names.
        where: dotted path of `values`, for messages.

    Raises:
        UserError: every unknown key (with the nearest known one), missing key and wrong type, on one line.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"config: {where or 'the file'} must be a mapping, found {_describe(values)}")
    if cls is ParallelLayout:
        return cls(**_layout(values, where))
    assert is_dataclass(cls)
    problems, known = Problems(), [field.name for field in fields(cls)]
    for key in values:
        if key not in known:
            problems.add(f"config: unknown key {_join(where, key)!r}{_hint(str(key), known)}")
    hints = get_type_hints(cls)
    result: dict[str, Any] = {}
    for field in fields(cls):
        name, path = field.name, _join(where, field.name)
        if name in values:
            result[name] = problems.attempt(partial(_value, hints[name], values[name], path))
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.add(f"config: {path!r} is missing")
    problems.check()
    return cls(**result)


def apply_override(values: dict[str, Any], override: str, parse: Any) -> None:
    """Sets `a.b=c` in nested plain data; `parse` turns the text after the equals sign into a value.

    Raises:
        UserError: no equals sign, or the path runs through something that is no mapping.
    """
    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")):
        raise UserError(f"--set {override}: must have the form section.field=value")
    *sections, name = path.split(".")
    target = values
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise UserError(f"--set {override}: {section!r} is no section")
    target[name] = parse(text)


def _layout(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = [field.name for field in fields(ParallelLayout)]
    for key, value in values.items():
        if key not in known:
            raise UserError(f"config: unknown key {_join(where, key)!r}{_hint(str(key), known)}")
        _value(int, value, _join(where, key))
    return dict(values)


def _value(kind: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        kinds = [arg for arg in args if arg is not type(None)]
        assert len(kinds) == 1, f"{path}: one type beside None, please"
        return _value(kinds[0], value, path)
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            hint = _hint(str(value), [str(arg) for arg in args])
            raise UserError(f"config: {path!r} must be one of {', '.join(map(str, args))}, found {value!r}{hint}")
        return value
    if origin is tuple:
        return _tuple(args, value, path)
    if is_dataclass(kind):
        return build(kind, {} if value is None else value, path)  # type: ignore[arg-type]
    if origin is dict:
        return _mapping(args[1], value, path)
    if kind is Any:
        return value
    return _scalar(kind, value, path)


def _tuple(args: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise UserError(f"config: {path!r} must be a list, found {_describe(value)}")
    if args[-1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        raise UserError(f"config: {path!r} must have {len(args)} elements, found {len(value)}")
    return tuple(_value(arg, item, f"{path}[{i}]") for i, (arg, item) in enumerate(zip(args, value, strict=True)))


def _mapping(kind: Any, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UserError(f"config: {path!r} must be a mapping of names, found {_describe(value)}")
    return {key: _value(kind, item, _join(path, key)) for key, item in value.items()}


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is float and isinstance(value, str):
        # YAML 1.1 reads 3e-4 (without a dot) as a string.
        with suppress(ValueError):
            value = float(value)
    if type(value) is not kind:
        expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
        raise UserError(f"config: {path!r} must be {expected}, found {_describe(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"config: {path!r} must be finite, found {value}")
    return value


def _hint(key: str, known: list[str]) -> str:
    near = get_close_matches(key, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _describe(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"
