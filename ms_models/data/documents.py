"""Finds the documents of a corpus and reads them: text files, directories, JSON lines, Python's own library."""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mappings.errors import UserError

STDLIB = "stdlib"
"""As a source: the source code of the Python standard library, which every machine that runs this has."""
JSONL = ".jsonl"
SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
STDLIB_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
JSONL_SPAN = 8 << 20
"""Bytes of a JSON-lines file that one task reads, so that a single large file still occupies every process."""


@dataclass(frozen=True)
class Span:
    """A unit of reading: a whole text file, or the lines of a JSON-lines file that start in `start:stop`."""

    path: Path
    key: str
    """Name that does not depend on where the corpus lies; decides the order and the split."""
    start: int
    stop: int


@dataclass(frozen=True)
class Document:
    """One document; `text` is None when its bytes are not UTF-8."""

    key: str
    text: str | None


def find_spans(sources: Sequence[Path | str], suffixes: Sequence[str], seed: int) -> list[Span]:
    """Every unit of reading of a corpus, in an order that depends on `seed` and the names alone.

    Args:
        sources: files (of any suffix), directories, or `stdlib`.
        suffixes: what counts as a document inside a directory, e.g. `.txt`.
        seed: seed of the order.

    Raises:
        UserError: a source is missing, or nothing was found.
    """
    spans: list[Span] = []
    for number, source in enumerate(sources):
        path, wanted, skipped = Path(source), tuple(suffixes), SKIPPED_FOLDERS
        if str(source) == STDLIB:
            path, wanted, skipped = Path(sysconfig.get_paths()["stdlib"]), (".py",), SKIPPED_FOLDERS | STDLIB_SKIPPED
        if path.is_file():
            spans += _spans(path, f"{number}/{path.name}")
        elif path.is_dir():
            found = sorted(_walk(path, wanted, skipped))
            if not found:
                raise UserError(f"{path}: holds no file that ends in {', '.join(wanted)}")
            for file in found:
                spans += _spans(file, f"{number}/{file.relative_to(path).as_posix()}")
        else:
            raise UserError(f"{path}: no such file or directory")
    if not spans:
        raise UserError("text: no source given")
    return sorted(spans, key=lambda span: (fraction_of(f"{span.key}@{span.start}", seed), span.key, span.start))


def fraction_of(key: str, seed: int) -> float:
    """A number in [0, 1) that looks random but depends on `key` and `seed` alone; orders and splits the corpus."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_documents(span: Span, field: str) -> Iterator[Document]:
    """The documents of one span.

    Args:
        span: what to read.
        field: name of the text in a JSON-lines record.

    Raises:
        UserError: the file cannot be read, or a line is no JSON object with a text under `field`.
    """
    try:
        with span.path.open("rb") as file:
            if span.path.suffix != JSONL:
                yield Document(span.key, _decode(file.read()))
                return
            yield from _lines(span, file, field)
    except OSError as error:
        raise UserError(f"{span.path}: cannot be read ({error.strerror})") from error


def _walk(directory: Path, suffixes: tuple[str, ...], skipped: set[str]) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if name not in skipped and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(suffixes) and not name.startswith("."))


def _spans(path: Path, key: str) -> Iterator[Span]:
    size = path.stat().st_size
    if path.suffix != JSONL:
        yield Span(path, key, 0, size)
        return
    for start in range(0, max(size, 1), JSONL_SPAN):
        yield Span(path, key, start, min(start + JSONL_SPAN, size))


def _decode(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _lines(span: Span, file: BinaryIO, field: str) -> Iterator[Document]:
    position = span.start
    if span.start:
        # The line that is cut by the boundary belongs to the span before.
        file.seek(span.start - 1)
        position += len(file.readline()) - 1
    while position < span.stop and (raw := file.readline()):
        where, key = f"{span.path}: line at byte {position}", f"{span.key}@{position}"
        position += len(raw)
        if not raw.strip():
            continue
        line = _decode(raw)
        yield Document(key, None if line is None else _field(line, field, where))


def _field(line: str, field: str, where: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg})") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: must be a JSON object, found {type(record).__name__}")
    if not isinstance(record.get(field), str):
        raise UserError(
            f"{where}: no text under {field!r}; the record has {', '.join(map(repr, record)) or 'no fields'}"
        )
    return str(record[field])
