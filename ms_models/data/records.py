"""A directory of prepared data: MindRecord shards per split, and `data.json` that says what is in them.

`data.json` is read without MindSpore, so a run is checked before anything heavy is imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import FileRecord, fsync_directory, hash_file

NAME = "data.json"
FORMAT = "msmigrate-data-1"
TRAIN, VALIDATION = "train", "validation"
FIELDS = ("input_ids", "attention_mask", "labels")
WRITE_ROWS = 512
BYTES_PER_TOKEN = 4 * len(FIELDS)


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
    """The settings it was made with."""

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
        if body.pop("format", None) != FORMAT:
            raise UserError(f"{path}: format is not {FORMAT!r}; prepare the data again")
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


class ShardWriter:
    """Writes the rows of one split to `<split>-NNNNN.mindrecord` files of about `shard_bytes` of tokens each.

    A context manager; `split` is valid after it.
    """

    def __init__(self, directory: Path, split: str, seq_length: int, shard_bytes: int) -> None:
        self.directory, self.name, self.seq_length = directory, split, seq_length
        self.rows_per_shard = max(1, shard_bytes // (seq_length * BYTES_PER_TOKEN))
        self.rows = self.tokens = 0
        self._files: list[str] = []
        self._pending: list[dict[str, np.ndarray]] = []
        self._writer: Any = None
        self._rows_in_shard = 0

    def __enter__(self) -> ShardWriter:
        return self

    def add(self, row: dict[str, np.ndarray]) -> None:
        """Appends one row of int32 arrays of `seq_length`."""
        self._pending.append(row)
        self.rows += 1
        self._rows_in_shard += 1
        self.tokens += int(row["attention_mask"].sum())
        if self._rows_in_shard == self.rows_per_shard:
            self._close_shard()
        elif len(self._pending) == WRITE_ROWS:
            self._write()

    def extend(self, rows: Iterable[dict[str, np.ndarray]]) -> None:
        """Appends several rows."""
        for row in rows:
            self.add(row)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close_shard()

    def split(self) -> Split:
        """What was written."""
        files = {name: hash_file(self.directory / name) for file in self._files for name in (file, f"{file}.db")}
        return Split(self.rows, self.tokens, files)

    def _write(self) -> None:
        from mindspore.mindrecord import FileWriter

        if not self._pending:
            return
        if self._writer is None:
            name = f"{self.name}-{len(self._files):05d}.mindrecord"
            self._files.append(name)
            self._writer = FileWriter(str(self.directory / name), shard_num=1)
            column = {"type": "int32", "shape": [self.seq_length]}
            self._writer.add_schema(dict.fromkeys(FIELDS, column), "packed sequences")
        self._writer.write_raw_data(self._pending)
        self._pending = []

    def _close_shard(self) -> None:
        self._write()
        if self._writer is not None:
            self._writer.commit()
        self._writer, self._rows_in_shard = None, 0
