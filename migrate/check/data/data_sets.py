"""`DataSet`: one directory that a run or the user names, with what its description says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from migrate.check.codes import finding
from migrate.report import Finding

DESCRIPTION = "data.json"
ROWS, DOCUMENTS = 64, 200
"""How much is looked at."""
Document = tuple[str, str | None, str]
"""Name, text, and why there is none."""


@dataclass(frozen=True)
class Readers:
    """What opens data: given by the command line, for the checks know nothing of MindSpore."""

    rows: Callable[[Path, int], Mapping[str, np.ndarray]]
    """Rows of a prepared directory: `input_ids`, `attention_mask`, `labels`, `[N, S]` each."""
    documents: Callable[[Path, int], Iterable[Document]]
    """Documents of files or directories of text."""


@dataclass(frozen=True)
class DataSet:
    """A directory of prepared rows, or of text."""

    name: str
    """As it was given."""
    path: Path
    weight: float = 1.0
    is_opened: bool = False
    """Whether its contents are looked at, too: where the user names it, not where a run does."""
    body: dict[str, Any] | None = None
    """Content of `data.json`; None where it holds text."""

    @property
    def is_prepared(self) -> bool:
        """Whether it has a description."""
        return self.body is not None

    @property
    def where(self) -> str:
        """Its description, as findings name it."""
        return f"{self.name}/{DESCRIPTION}"

    def rows(self, split: str) -> int | None:
        """Rows of a split; None where the description does not say."""
        found = ((self.body or {}).get("splits") or {}).get(split)
        value = found.get("rows") if isinstance(found, dict) else None
        return value if type(value) is int else None

    @property
    def tokenizer(self) -> dict[str, Any]:
        """What the description says of the tokenizer."""
        value = (self.body or {}).get("tokenizer")
        return value if isinstance(value, dict) else {}


def of_run(section: Mapping[str, Any], run: Path) -> Iterator[DataSet | Finding]:
    """The directories that the `data` section of a run names, or what is wrong with them."""
    named: list[tuple[str, Any, Any]] = []
    if isinstance(section.get("path"), str):
        named.append(("data.path", section["path"], 1.0))
    blend = section.get("blend")
    for number, part in enumerate(blend if isinstance(blend, list) else []):
        field = f"data.blend[{number}]"
        if isinstance(part, dict) and isinstance(part.get("path"), str):
            named.append((field, part["path"], part.get("weight")))
        else:
            yield finding("C605", f"{field} must have path and weight, found {part!r}", field=field)
    for field, source, weight in named:
        folder = Path(source)
        if not folder.is_absolute() and not folder.is_dir():
            folder = run.parent / source
        if not folder.is_dir():
            yield finding("C605", f"{field} {source!r}: no such directory", field=field)
            continue
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
            yield finding("C702", f"{field}.weight must be a number above 0, found {weight!r}", field=field)
            weight = 1.0
        try:
            yield DataSet(source, folder, float(weight), body=read_json(folder / DESCRIPTION))
        except UserError as error:
            yield finding("C605", str(error), field=field)


def of_user(path: Path) -> DataSet | Finding:
    """A directory (or a file of text) that the user names."""
    if not (path / DESCRIPTION).is_file():
        if path.is_dir() and any(path.glob("*.mindrecord")):
            message = f"{path}: has MindRecord shards, but no {DESCRIPTION} that says what is in them"
            return finding("C701", message, file=str(path))
        return DataSet(str(path), path, is_opened=True)
    try:
        return DataSet(str(path), path, is_opened=True, body=read_json(path / DESCRIPTION))
    except UserError as error:
        return finding("C701", str(error), file=f"{path}/{DESCRIPTION}")
