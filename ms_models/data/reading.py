"""Reads the documents of a span: text, lines, JSON records, rows of tables; compressed files piece by piece."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mappings.errors import UserError
from ms_models.data import tables
from ms_models.data.documents import SPAN_BYTES, Document, Span
from ms_models.data.file_kinds import Kind, kind_of


@dataclass(frozen=True)
class Task:
    """What one process reads and encodes at a time."""

    span: Span
    offset: int = 0
    """Where `piece` begins in the decompressed file."""
    piece: bytes | None = None
    """Whole lines of a compressed file, which only one process can read; None where the span is read from its file."""
    size: int = 0
    """Bytes of the span that it stands for."""


@dataclass(frozen=True)
class ReadingOptions:
    """What reading depends on."""

    field: str = "text"
    text_unit: str = "file"
    skip_null: bool = False


def tasks(span: Span, text_unit: str) -> Iterator[Task]:
    """The tasks of a span: one, or several of a compressed file of lines.

    Raises:
        UserError: a compressed file is damaged.
    """
    kind = kind_of(span.path, text_unit)
    if not kind.compression or kind.format == "text":
        yield Task(span, size=span.size)
        return
    offset = 0
    for piece, share in _pieces(span.path, kind):
        yield Task(span, offset, piece, share)
        offset += len(piece)


def read_documents(task: Task, options: ReadingOptions) -> Iterator[Document]:
    """The documents of one task.

    Raises:
        UserError: the file cannot be read, a line is no JSON object with a text, or a row has none.
    """
    span = task.span
    kind = kind_of(span.path, options.text_unit)
    try:
        if kind.is_table:
            yield from _rows(span, kind, options)
        elif task.piece is not None:
            yield from _lines(span, _placed(task.piece, task.offset), kind, options)
        elif kind.format == "text":
            with _opened(span.path, kind) as file:
                yield _document(span.key, file.read())
        else:
            with span.path.open("rb") as file:
                yield from _lines(span, _lines_of(span, file), kind, options)
    except OSError as error:
        raise UserError(f"{span.path}: cannot be read ({error.strerror or error})") from error


def _pieces(path: Path, kind: Kind) -> Iterator[tuple[bytes, int]]:
    """Whole lines, about `SPAN_BYTES` of them at a time, and the bytes of the compressed file that they took."""
    with path.open("rb") as raw, _opened(path, kind, raw) as file:
        rest, before, at = b"", 0, 0
        while block := file.read(SPAN_BYTES):
            at = min(raw.tell(), path.stat().st_size) if kind.compression == "gz" else before
            end = block.rfind(b"\n") + 1
            if not end:
                rest += block
                continue
            yield rest + block[:end], at - before
            rest, before = block[end:], at
        size = path.stat().st_size
        yield rest, size - before


@contextmanager
def _opened(path: Path, kind: Kind, raw: BinaryIO | None = None) -> Iterator[Any]:
    try:
        if kind.compression == "zst":
            with tables.decompressed(path) as file:
                yield file
        elif kind.compression == "gz":
            with gzip.open(path if raw is None else raw, "rb") as file:
                yield file
        else:
            with path.open("rb") as file:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged, or not compressed as its name says ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _lines_of(span: Span, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Positions and bytes of the lines that start in the span."""
    position = span.start
    if span.start:
        # The line that is cut by the boundary belongs to the span before.
        file.seek(span.start - 1)
        position += len(file.readline()) - 1
    while position < span.stop and (raw := file.readline()):
        yield position, raw
        position += len(raw)


def _lines(span: Span, lines: Iterator[tuple[int, bytes]], kind: Kind, options: ReadingOptions) -> Iterator[Document]:
    for position, raw in lines:
        if not raw.strip():
            continue
        key = f"{span.key}@{position}"
        document = _document(key, raw)
        if kind.format == "json" and document.text is not None:
            document = _record(key, document.text, f"{span.path}: line at byte {position}", options)
        elif document.text is not None:
            document = Document(key, document.text.rstrip("\r\n"))
        yield document


def _placed(piece: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    for raw in io.BytesIO(piece):
        yield offset, raw
        offset += len(raw)


def _document(key: str, raw: bytes) -> Document:
    try:
        return Document(key, raw.decode("utf-8"))
    except UnicodeDecodeError:
        return Document(key, None, "undecodable")


def _record(key: str, line: str, where: str, options: ReadingOptions) -> Document:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        advice = "; a record a line is expected, an array is not" if line.lstrip().startswith("[") else ""
        raise UserError(f"{where}: not valid JSON ({error.msg}){advice}") from error
    if not isinstance(record, dict):
        raise UserError(f"{where}: must be a JSON object, found {type(record).__name__}")
    field = options.field
    if field in record and record[field] is None:
        return _null(key, where, options)
    if not isinstance(record.get(field), str):
        names = ", ".join(map(repr, record)) or "no fields"
        raise UserError(f"{where}: no text under {field!r}; the record has {names}")
    try:
        record[field].encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and UTF-8 cannot
        return Document(key, None, "undecodable")
    return Document(key, record[field])


def _rows(span: Span, kind: Kind, options: ReadingOptions) -> Iterator[Document]:
    group = "" if span.group is None else f"{span.group}:"
    place = "" if span.group is None else f"row group {span.group}, "
    for number, text in tables.rows(span.path, kind, options.field, span.start, span.stop, span.group):
        key = f"{span.key}@{group}{number}"
        if text is None:
            yield _null(key, f"{span.path}: {place}row {number}", options)
        elif isinstance(text, bytes):
            yield Document(key, None, "undecodable")
        else:
            yield Document(key, text)


def _null(key: str, where: str, options: ReadingOptions) -> Document:
    if not options.skip_null:
        raise UserError(f"{where}: the text under {options.field!r} is null; set skip_null to leave such records out")
    return Document(key, None, "null")
