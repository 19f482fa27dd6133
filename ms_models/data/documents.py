"""Finds the documents of a corpus: which files, in which units of reading, in which order."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from ms_models.data.file_kinds import Kind, kind_of

STDLIB = "stdlib"
"""As a source: the source code of the Python standard library, which every machine that runs this has."""
SKIPPED_FOLDERS = {"__pycache__", "node_modules"}
STDLIB_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
SPAN_BYTES = 8 << 20
"""Text that one task reads, so that a single large file still occupies every process, in bounded memory."""
MOST_PARTS = 64
"""Spans of a row group: each reads the group from its start, so there should not be too many."""


@dataclass(frozen=True)
class Span:
    """A unit of reading: a whole file, the lines that start in bytes `start:stop`, or the rows `start:stop`."""

    path: Path
    key: str
    """Name that does not depend on where the corpus lies; decides the order and the split."""
    start: int
    stop: int
    source: int = 0
    """Number of the source."""
    size: int = 0
    """Bytes of text, of tables about."""
    group: int | None = None
    """Row group of a Parquet file; `start` and `stop` count in it."""


@dataclass(frozen=True)
class Document:
    """One document; `text` is None when there is none, and `problem` says why."""

    key: str
    text: str | None
    problem: str = ""
    """`undecodable` (no UTF-8) or `null`."""


def find_spans(
    sources: Sequence[Path | str], suffixes: Sequence[str], seed: int, *, field: str = "text", text_unit: str = "file"
) -> list[Span]:
    """Every unit of reading of a corpus, in an order that depends on `seed` and the names alone.

    Args:
        sources: files (of any suffix), directories, or `stdlib`.
        suffixes: what counts as a document inside a directory, e.g. `.txt`.
        seed: seed of the order.
        field: column of the text in tables.
        text_unit: whether a text file is one document (`file`) or each of its lines (`line`).

    Raises:
        UserError: a source is missing or empty, a table is damaged or lacks the column, or nothing was found.
    """
    spans: list[Span] = []
    for number, source in enumerate(sources):
        path, wanted, skipped = Path(source), tuple(suffixes), SKIPPED_FOLDERS
        if str(source) == STDLIB:
            path, wanted, skipped = Path(sysconfig.get_paths()["stdlib"]), (".py",), SKIPPED_FOLDERS | STDLIB_SKIPPED
        if path.is_file():
            if not path.stat().st_size:
                raise UserError(f"{path}: is empty")
            found = [(path, path.name)]
        elif path.is_dir():
            found = [(file, file.relative_to(path).as_posix()) for file in sorted(_walk(path, wanted, skipped))]
            if not found:
                raise UserError(f"{path}: holds no file that ends in {', '.join(wanted)}")
        else:
            raise UserError(f"{path}: no such file or directory")
        for file, name in found:
            spans += _spans(file, f"{number}/{name}", number, field, text_unit)
    if not spans:
        raise UserError(f"{', '.join(map(str, sources))}: no document found")
    return sorted(spans, key=lambda span: (fraction_of(_place(span), seed), span.key, span.group or 0, span.start))


def fraction_of(key: str, seed: int) -> float:
    """A number in [0, 1) that looks random but depends on `key` and `seed` alone; orders and splits the corpus."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _place(span: Span) -> str:
    return f"{span.key}@{span.start}" if span.group is None else f"{span.key}@{span.group}:{span.start}"


def _walk(directory: Path, suffixes: tuple[str, ...], skipped: set[str]) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = [name for name in subfolders if name not in skipped and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(suffixes) and not name.startswith("."))


def _spans(path: Path, key: str, source: int, field: str, text_unit: str) -> Iterator[Span]:
    kind, size = kind_of(path, text_unit), path.stat().st_size
    if kind.is_table:
        from ms_models.data import tables

        for group, rows, bytes_ in tables.parts(path, kind, field):
            each = max(1, -(-rows // min(MOST_PARTS, max(1, -(-bytes_ // SPAN_BYTES)))))
            for start in range(0, rows, each):
                stop = min(start + each, rows)
                yield Span(path, key, start, stop, source, bytes_ * (stop - start) // rows, group)
    elif not kind.is_divisible:
        yield Span(path, key, 0, size, source, size)
    else:
        for start in range(0, max(size, 1), SPAN_BYTES):
            stop = min(start + SPAN_BYTES, size)
            yield Span(path, key, start, stop, source, stop - start)


__all__ = ["Document", "Kind", "Span", "find_spans", "fraction_of"]
