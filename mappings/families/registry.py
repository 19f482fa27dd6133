"""Finds the family files."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families.family import Family
from mappings.families.schema import parse
from mappings.families.yaml_files import read_yaml

FOLDER = Path(__file__).parent


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
    # Names come from files of users, too: none is made a path of, which may lead elsewhere or be too long for one.
    known = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise UserError(f"unknown family {name!r}; {hint}")
    return parse(known[name], read_yaml(known[name]))


def family_for_config(config: Mapping[str, Any], where: str = "config.json") -> Family:
    """The family a `config.json` belongs to, by its `model_type`.

    Raises:
        UserError: no `model_type`, or one that no family names.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UserError(f"{where}: 'model_type' is missing, so the model family is unknown")
    family = _by_type(model_type)
    if family is None:
        by_type = [kind for family in families().values() for kind in family.model_types]
        near = get_close_matches(model_type, by_type, 1)
        hint = f"; the nearest known is {near[0]!r}" if near else ""
        known = ", ".join(sorted(by_type))
        raise UserError(f"{where}: model_type {model_type!r} is not supported{hint} (known: {known})")
    return family


def _by_type(model_type: str) -> Family | None:
    """Parses only files with the word in them: all of them take longer than many a copy."""
    for path in sorted(FOLDER.glob("*.yaml")):
        if model_type in path.read_text(encoding="utf-8"):
            family = load_family(path.stem)
            if model_type in family.model_types:
                return family
    return None
