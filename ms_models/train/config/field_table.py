"""`markdown`: every field of a run configuration with type, default and meaning, read off the dataclasses."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ms_models.train.config.run import RunConfig

SIMPLE = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "mapping", Any: "any"}
BOUNDS = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
"""Names of bounds in `bounds.number`, and their words."""
REQUIRED = "required"


@dataclass(frozen=True)
class FieldRow:
    """One field of a run configuration."""

    path: str
    """Dotted name, as in `--set`; `[]` stands for an entry of a list."""
    kind: str
    default: str
    meaning: str
    """Its docstring on one line."""


def field_rows(cls: type = RunConfig, where: str = "") -> Iterator[FieldRow]:
    """The fields of a dataclass and of those in it, in their order.

    Args:
        cls: dataclass.
        where: dotted name of what holds its fields.
    """
    hints, meanings = get_type_hints(cls), _docstrings(cls)
    for item in fields(cls):
        path, hint = f"{where}.{item.name}" if where else item.name, hints[item.name]
        inner, is_list = _section(hint)
        if inner is None or where:
            kind = ", ".join([_kind(hint), *_bounds(item.metadata)])
            yield FieldRow(path, kind, _default(item), meanings.get(item.name, ""))
        if inner is not None:
            yield from field_rows(inner, f"{path}[]" if is_list else path)


def markdown() -> str:
    """The table as docs/run-fields.md."""
    lines = [
        "# Fields of a run configuration",
        "",
        "This file is made by `msmigrate train --fields`. A field is set in the YAML file, or by",
        "`--set train.steps=100`; None is YAML's `null`, and `[]` stands for an entry of a list.",
    ]
    hints = get_type_hints(RunConfig)
    rows = list(field_rows())
    for section in fields(RunConfig):
        about = (inspect.getdoc(hints[section.name]) or "").partition("\n")[0]
        lines += ["", f"## {section.name}", "", about, "", "| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{row.path}` | {row.kind} | {row.default} | {row.meaning} |"
            for row in rows
            if row.path.startswith(f"{section.name}.")
        ]
    return "\n".join(lines) + "\n"


def _docstrings(cls: type) -> dict[str, str]:
    """What stands behind each field in the source of its class."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if is_field and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[one.target.id] = " ".join(str(after.value.value).split()).replace("|", "/")  # type: ignore[attr-defined]
    return found


def _section(hint: Any) -> tuple[type | None, bool]:
    """The dataclass that a type holds, and whether as entries of a list."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint, False
    for part in get_args(hint):
        inner, _ = _section(part)
        if inner is not None:
            return inner, get_origin(hint) is tuple
    return None, False


def _kind(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(part) for part in parts if part is not type(None)) + (
            " or null" if type(None) in parts else ""
        )
    if origin is tuple:
        return f"list of {_kind(parts[0])}" if parts[-1] is ... else f"list of {len(parts)}: {_kind(parts[0])}"
    if isinstance(hint, type) and is_dataclass(hint):
        return "mapping (below)"
    return SIMPLE[origin or hint]


def _bounds(metadata: Mapping[str, Any]) -> list[str]:
    return [f"{word} {metadata[name]:g}" for name, word in BOUNDS.items() if name in metadata]


def _default(item: Field[Any]) -> str:
    if item.default_factory is not MISSING:
        return f"`{json.dumps(item.default_factory())}`"
    if item.default is MISSING:
        return REQUIRED
    if item.default is None:
        return "null"
    return f"`{json.dumps(item.default)}`"
