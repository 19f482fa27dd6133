"""A directory of prepared data: MindRecord shards per split, and `data.json` that says what is in them.

`data.json` is read without MindSpore, so a run is checked before anything heavy is imported.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import FileRecord, fsync_directory

NAME = "data.json"
FORMAT = "msmigrate-data-2"
READABLE = (FORMAT, "msmigrate-data-1")
"""The first format says neither how rows were packed, which was one way only, nor what each source gave."""
TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class Split:
    """Shards of one split, in reading order."""

    rows: int
    tokens: int
    """Positions that are not padding."""
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class PreparedData:
    """Contents of `data.json`."""

    seq_length: int
    splits: dict[str, Split]
    tokenizer: dict[str, Any]
    """SHA-256 of tokenizer.json, size of the vocabulary, ids of eos and pad, the largest id in use."""
    documents: dict[str, Any]
    """Counts of documents by what became of them, and the histogram of their lengths."""
    request: dict[str, Any]
    """The settings it was made with, see `Recipe`."""
    packing: str = "concatenate"
    """How documents were put into rows, see `Recipe.packing`."""
    isolates: bool = False
    """Whether the attention mask numbers the documents of a row, which must not see each other."""
    sources: list[dict[str, Any]] = dataclass_field(default_factory=list)
    """Of each source: documents and tokens by split, and what was left out."""

    @classmethod
    def read(cls, directory: Path) -> PreparedData:
        """The description of a directory, with the presence and size of every shard checked.

        Raises:
            UserError: no prepared data there, or a shard is missing or cut short.
        """
        path = directory / NAME
        if not path.is_file():
            raise UserError(f"{directory}: no {NAME}, so this is no prepared data; make it with `msmigrate data`")
        body = read_json(path)
        if (found := body.pop("format", None)) not in READABLE:
            raise UserError(f"{path}: format is {found!r}, not {' or '.join(READABLE)}; prepare the data again")
        try:
            splits = {
                name: Split(split["rows"], split["tokens"], {n: FileRecord(**r) for n, r in split["files"].items()})
                for name, split in body.pop("splits").items()
            }
            data = cls(splits=splits, **body)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: malformed ({type(error).__name__}: {error})") from error
        for split in data.splits.values():
            for name, record in split.files.items():
                size = (directory / name).stat().st_size if (directory / name).is_file() else None
                if size != record.bytes:
                    what = "missing" if size is None else f"{size} bytes, expected {record.bytes}"
                    raise UserError(f"{directory / name}: {what}; prepare the data again")
        return data

    def write(self, directory: Path) -> None:
        """Writes `data.json`, last and durably, so that a directory that has it is complete."""
        with (directory / NAME).open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, **asdict(self)}, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        fsync_directory(directory)

    @property
    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of every training shard: what a resumed run must find unchanged."""
        return {name: record.sha256 for name, record in self.splits[TRAIN].files.items()}

    def padding_share(self, split: str) -> float:
        """Share of a split's positions that are padding."""
        positions = self.splits[split].rows * self.seq_length
        return 1 - self.splits[split].tokens / positions if positions else 0.0
