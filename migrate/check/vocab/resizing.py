"""A copy of a checkpoint with another number of vocabulary rows: byte ranges, and rows made new."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.families import Family
from mappings.formats.hf_directory import INDEX, read_tensors
from mappings.formats.manifest import fsync_directory
from mappings.formats.safetensors import TensorEntry, build_header, read_header, read_pieces
from migrate.check.vocab.new_rows import NewRows

FIELDS = ("vocab_size", "padded_vocab_size")


@dataclass(frozen=True)
class Change:
    """One tensor whose first axis is the vocabulary."""

    entry: TensorEntry
    rows: int
    """New number of rows."""

    @property
    def kept(self) -> int:
        """Rows that stay."""
        return min(self.entry.shape[0], self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """New shape."""
        return (self.rows, *self.entry.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.entry.nbytes // self.entry.shape[0]


def vocabulary_field(family: Family, config: Mapping[str, Any]) -> str:
    """The field of `config.json` that the number of embedding rows comes from.

    Raises:
        UserError: none of the known ones is.
    """
    for name in FIELDS:
        if type(config.get(name)) is int:
            more = {**config, name: config[name] + 1}
            if family.dims(more)["vocab"] != family.dims(config)["vocab"]:
                return name
    raise UserError(f"config.json: none of {', '.join(FIELDS)} gives the number of embedding rows of {family.name}")


def changes(
    family: Family, config: Mapping[str, Any], tensors: Mapping[str, TensorEntry], rows: int
) -> tuple[dict[str, Any], dict[str, Change]]:
    """The new `config.json`, and every stored tensor that gets another number of rows.

    Raises:
        UserError: the sizes do not fit the stored tensors.
    """
    new = {**config, vocabulary_field(family, config): rows}
    before = {parameter.name: tuple(parameter.shape) for parameter in family.parameters(config)}
    after = {parameter.name: tuple(parameter.shape) for parameter in family.parameters(new)}
    found = {}
    # Tensors that tied models may store as well: the head of a tied embedding.
    spare = family.ties(config)
    for name, entry in tensors.items():
        source = name if name in before else spare.get(name)
        if source is None or before.get(source) == after.get(source):
            continue
        if entry.shape != before[source]:
            raise UserError(f"{entry.path}: {name} is {list(entry.shape)}, config.json gives {list(before[source])}")
        if after[source][1:] != entry.shape[1:]:
            raise UserError(f"{name}: the vocabulary is not its first axis")
        found[name] = Change(entry, rows)
    if not found:
        raise UserError("no stored tensor has vocabulary rows")
    return new, found


def write(
    directory: Path,
    tensors: Mapping[str, TensorEntry],
    out: Path,
    config: Mapping[str, Any],
    changed: Mapping[str, Change],
    new_rows: NewRows,
    advance: Callable[[int], None] = lambda amount: None,
) -> int:
    """Writes the checkpoint; `out` appears when it is complete and verified.

    Returns:
        How many tensors were verified.

    Raises:
        UserError: a file cannot be read or written, or does not hold what was written.
    """
    try:
        with _staging(out) as staging:
            compared = _write(directory, staging, tensors, config, changed, new_rows, advance)
            if out.is_dir():
                out.rmdir()
            staging.rename(out)
            fsync_directory(out.parent)
            return compared
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror or error}); nothing was kept") from error


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """An empty directory beside `out` that no other run uses, removed at the end if it is still there."""
    # A fixed name: what a killed run left behind is written over by the next one, instead of filling the disk.
    staging = out.with_name(f".{out.name}.partial")
    staging.mkdir(parents=True, exist_ok=True)
    lock = os.open(staging, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = staging.exists() and os.path.samestat(os.fstat(lock), staging.stat())
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise UserError(f"{out}: another run is writing it; wait for its end or choose another directory")
        try:
            for path in staging.iterdir():
                path.unlink()
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(lock)


def _write(
    directory: Path,
    staging: Path,
    tensors: Mapping[str, TensorEntry],
    config: Mapping[str, Any],
    changed: Mapping[str, Change],
    new_rows: NewRows,
    advance: Callable[[int], None],
) -> int:
    grown = 0
    for path in sorted(directory.iterdir()):
        if path.suffix == ".safetensors":
            grown += _file(path, staging / path.name, changed, new_rows, advance)
        elif path.is_file() and path.name not in ("config.json", INDEX):
            shutil.copyfile(path, staging / path.name)
    _json(staging / "config.json", config)
    if (directory / INDEX).is_file():
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        if isinstance(index.get("metadata", {}).get("total_size"), int):
            index["metadata"]["total_size"] += grown
        _json(staging / INDEX, index)
    compared = verify(tensors, read_tensors(staging), changed)
    fsync_directory(staging)
    return compared


def verify(source: Mapping[str, TensorEntry], made: Mapping[str, TensorEntry], changed: Mapping[str, Change]) -> int:
    """Reads both checkpoints again: kept bytes are equal, shapes are right.

    Returns:
        How many tensors were compared.

    Raises:
        UserError: names what differs.
    """
    if source.keys() != made.keys():
        raise UserError(f"verify: other tensors than before: {sorted(source.keys() ^ made.keys())[:5]}")
    for name, entry in source.items():
        change = changed.get(name)
        shape = entry.shape if change is None else change.shape
        size = entry.nbytes if change is None else change.kept * change.row_bytes
        if made[name].shape != shape or made[name].dtype != entry.dtype:
            raise UserError(f"verify: {name} is {list(made[name].shape)}, expected {list(shape)}")
        if _digest(entry, size) != _digest(made[name], size):
            raise UserError(f"verify: {name} has other bytes than before")
    return len(source)


def _file(
    path: Path, target: Path, changed: Mapping[str, Change], new_rows: NewRows, advance: Callable[[int], None]
) -> int:
    """Writes one file; gives by how many bytes its tensors grew."""
    entries, metadata = read_header(path)
    shapes = {entry.name: changed[entry.name].shape if entry.name in changed else entry.shape for entry in entries}
    header, spans = build_header([(entry.name, entry.dtype, shapes[entry.name]) for entry in entries], metadata)
    with target.open("wb") as file:
        file.write(header)
        for entry in entries:
            change = changed.get(entry.name)
            size = entry.nbytes if change is None else change.kept * change.row_bytes
            assert file.tell() == spans[entry.name][0]
            for piece in read_pieces(entry, size):
                file.write(piece)
                advance(len(piece))
            if change is not None and change.rows > change.kept:
                rows = new_rows.make(entry, change.kept, change.rows - change.kept)
                file.write(np.ascontiguousarray(rows).data)
        file.flush()
        os.fsync(file.fileno())
    return sum(span[1] for span in spans.values()) - sum(entry.nbytes for entry in entries)


def _digest(entry: TensorEntry, size: int) -> bytes:
    digest = hashlib.sha256()
    for piece in read_pieces(entry, size):
        digest.update(piece)
    return digest.digest()


def _json(path: Path, body: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
