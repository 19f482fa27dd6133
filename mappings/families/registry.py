"""Finds and checks the family files."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from mappings.expressions import evaluate
from mappings.families.family import CLASSES, Family

FOLDER = Path(__file__).parent
FIELDS = {"family", "model_types", "architectures", "dimensions", "flags", "parameters", "ignored", "tied"}
ROW_FIELDS = {"name", "shape", "class", "cut", "unit", "padded", "when", "unless"}


@cache
def families() -> dict[str, Family]:
    """All families by name."""
    return {path.stem: load_family(path.stem) for path in sorted(FOLDER.glob("*.yaml"))}


@cache
def load_family(name: str) -> Family:
    """One family by the name of its file.

    Raises:
        UserError: there is no such family.
        ValueError: its file does not follow the schema.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = [p.stem for p in sorted(FOLDER.glob("*.yaml"))]
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise UserError(f"unknown family {name!r}; {hint}")
    return _parse(path, yaml.safe_load(path.read_text(encoding="utf-8")))


def family_for_config(config: Mapping[str, Any], where: str = "config.json") -> Family:
    """The family a `config.json` belongs to, by its `model_type`.

    Raises:
        UserError: no `model_type`, or one that no family names.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UserError(f"{where}: 'model_type' is missing, so the model family is unknown")
    by_type = {kind: family for family in families().values() for kind in family.model_types}
    if model_type not in by_type:
        near = get_close_matches(model_type, by_type, 1)
        hint = f"; the nearest known is {near[0]!r}" if near else ""
        known = ", ".join(sorted(by_type))
        raise UserError(f"{where}: model_type {model_type!r} is not supported{hint} (known: {known})")
    return by_type[model_type]


def _parse(path: Path, data: Any) -> Family:
    _fields(path, "the file", data, FIELDS, required=FIELDS)
    if data["family"] != path.stem:
        raise ValueError(f"{path.name}: family is {data['family']!r}")
    symbols: dict[str, int] = {}
    for symbol, source in data["dimensions"].items():
        _fields(path, f"dimension {symbol}", source, {"field", "default"}, required={"field"})
        evaluate(source.get("default", 1), symbols)
        symbols[symbol] = 1
    for flag, source in data["flags"].items():
        _fields(path, f"flag {flag}", source, {"field", "default"}, required={"field", "default"})
    names: set[str] = set()
    for row in data["parameters"]:
        _row(path, row, symbols, data["flags"])
        if row["name"] in names:
            raise ValueError(f"{path.name}: {row['name']} is listed twice")
        names.add(row["name"])
    for name, tie in data["tied"].items():
        _fields(path, f"tied {name}", tie, {"same_as", "when"}, required={"same_as", "when"})
        if tie["same_as"] not in names or tie["when"] not in data["flags"]:
            raise ValueError(f"{path.name}: tied {name}: same_as {tie['same_as']!r} or when {tie['when']!r} is unknown")
    return Family(
        name=data["family"],
        model_types=tuple(data["model_types"]),
        architectures=tuple(data["architectures"]),
        dimensions=data["dimensions"],
        flags=data["flags"],
        rows=tuple(data["parameters"]),
        ignored=tuple(data["ignored"]),
        tied=data["tied"],
    )


def _row(path: Path, row: Any, symbols: Mapping[str, int], flags: Mapping[str, Any]) -> None:
    where = f"row {row.get('name') if isinstance(row, dict) else row}"
    _fields(path, where, row, ROW_FIELDS, required={"name", "shape", "class"})
    if row["class"] not in CLASSES:
        raise ValueError(f"{path.name}: {where}: class {row['class']!r} is none of {CLASSES}")
    cut = row.get("cut")
    if cut is not None and not 0 <= cut < len(row["shape"]):
        raise ValueError(f"{path.name}: {where}: cut {cut} is no axis of {row['shape']}")
    if cut is None and (row.get("padded") or "unit" in row):
        raise ValueError(f"{path.name}: {where}: padded and unit need a cut")
    for key in ("when", "unless"):
        if key in row and row[key] not in flags:
            raise ValueError(f"{path.name}: {where}: {key} {row[key]!r} is no flag")
    for expression in [*row["shape"], row.get("unit", 1)]:
        evaluate(expression, symbols)


def _fields(path: Path, where: str, data: Any, allowed: set[str], required: set[str]) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{path.name}: {where} must be a mapping, found {type(data).__name__}")
    if unknown := set(data) - allowed:
        raise ValueError(f"{path.name}: {where}: unknown {sorted(unknown)}, allowed are {sorted(allowed)}")
    if missing := required - set(data):
        raise ValueError(f"{path.name}: {where}: missing {sorted(missing)}")
