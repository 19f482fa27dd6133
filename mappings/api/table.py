"""The table of rows: every YAML file of this folder, read once."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import yaml

from mappings.api.row import Row, parse_row

HERE = Path(__file__).parent


class Standing(StrEnum):
    """What the table knows about a name."""

    MAPPED = "mapped"
    UNSUPPORTED = "unsupported"
    """torch has it, MindSpore has no counterpart; the row says why and what to do."""
    UNMAPPED = "known but unmapped"
    """torch has it and no row says anything about it."""
    UNKNOWN = "unknown"
    """torch has no such public name: a typing error, a private name or another version of torch."""


@functools.cache
def known_names() -> frozenset[str]:
    """Every public name of the torch version that the table was written against, and every namespace."""
    names = json.loads((HERE / "known_names.json").read_text(encoding="ascii"))["names"]
    return frozenset(names) | {f"{space}.{name}" for space, text in names.items() for name in text.split()}


class ApiTable:
    """Rows by torch name; the overloads of a name keep their file order."""

    def __init__(self, rows: Iterable[Row]) -> None:
        grouped: dict[str, list[Row]] = {}
        for row in rows:
            grouped.setdefault(row.name, []).append(row)
        self._rows: Mapping[str, tuple[Row, ...]] = {name: tuple(group) for name, group in grouped.items()}
        self._namespaces = {
            name.rsplit(".", number)[0]
            for name in self._rows
            if self.standing(name) is Standing.MAPPED
            for number in range(1, name.count(".") + 1)
        }

    def rows(self, name: str) -> tuple[Row, ...]:
        """Overloads of a name; empty when the table does not know it."""
        return self._rows.get(name, ())

    def names(self) -> frozenset[str]:
        """Every name that has a row."""
        return frozenset(self._rows)

    def known(self, name: str) -> bool:
        """Whether torch has this public name, mapped or not."""
        return name in self._rows or name in known_names()

    def has_members(self, name: str) -> bool:
        """Whether a module, class or namespace has a supported row below it: `torch.cuda`, `torch.nn.functional`."""
        return name in self._namespaces

    def standing(self, name: str) -> Standing:
        """Which of the four answers the table has for a torch name."""
        if rows := self._rows.get(name):
            unsupported = all(row.status == "unsupported" for row in rows)
            return Standing.UNSUPPORTED if unsupported else Standing.MAPPED
        return Standing.UNMAPPED if name in known_names() else Standing.UNKNOWN

    def __iter__(self) -> Iterator[Row]:
        for group in self._rows.values():
            yield from group

    def __contains__(self, name: object) -> bool:
        return name in self._rows


def read_rows(path: Path) -> list[Row]:
    """Rows of one file.

    Raises:
        ValueError: the file is no list of rows, or a row breaks the schema; the message names file and row.
    """
    # CSafeLoader parses the same language about ten times faster and is part of every binary wheel of PyYAML.
    entries = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(entries, list):
        raise ValueError(f"{path.name}: a table file is a list of rows, not {type(entries).__name__}")
    return [parse_row(entry, f"{path.name}: row {number}") for number, entry in enumerate(entries, 1)]


@functools.cache
def load_table(directory: Path = HERE) -> ApiTable:
    """Read all `*.yaml` files of a directory (default: the shipped table).

    Raises:
        ValueError: schema fault; the message names file and row.
    """
    return ApiTable(row for path in sorted(directory.glob("*.yaml")) for row in read_rows(path))
