"""Text columns of Parquet and Arrow files, a few rows at a time. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.data.file_kinds import Kind

ROWS_AT_ONCE = 256
PYARROW = "pip install 'msmigrate[data]'"


def arrow() -> Any:
    """The library.

    Raises:
        UserError: it is not there, or does not run with the numpy that MindSpore needs.
    """
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"data: Parquet, Arrow and .zst files need pyarrow: {PYARROW} ({error})") from error
    return pyarrow


def parts(path: Path, kind: Kind, field: str) -> list[tuple[int | None, int, int]]:
    """The parts of a table: number of the row group (None in Arrow files), rows, and bytes of the column, about.

    Raises:
        UserError: the file is damaged, or has no text column of that name.
    """
    with _errors(path):
        if kind.format == "parquet":
            with arrow().parquet.ParquetFile(path) as file:
                _check(file.schema_arrow, field, path)
                meta = file.metadata
                names = [meta.schema.column(i).path for i in range(meta.num_columns)]
                column = names.index(field)
                groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
                return [(n, g.num_rows, g.column(column).total_uncompressed_size) for n, g in enumerate(groups)]
        with _record_batches(path) as (schema, batches):
            _check(schema, field, path)
            index, rows, size = schema.get_field_index(field), 0, 0
            for batch in batches:
                rows += batch.num_rows
                size += batch.column(index).nbytes
            return [(None, rows, size)]


def rows(path: Path, kind: Kind, field: str, start: int, stop: int, group: int | None) -> Iterator[tuple[int, Any]]:
    """Numbers and texts (None for null) of the rows `start:stop` of a row group, or of an Arrow file.

    Raises:
        UserError: the file is damaged.
    """
    with _errors(path if group is None else f"{path}: row group {group}"):
        at = 0
        if kind.format == "parquet":
            with arrow().parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=[field], use_threads=False):
                    if at + batch.num_rows > start:
                        yield from _texts(batch.column(0), at, start, stop)
                    at += batch.num_rows
                    if at >= stop:
                        return
            return
        with _record_batches(path) as (schema, batches):
            index = schema.get_field_index(field)
            for batch in batches:
                if at + batch.num_rows > start:
                    column = batch.column(index)
                    for first in range(0, batch.num_rows, ROWS_AT_ONCE):
                        yield from _texts(column[first : first + ROWS_AT_ONCE], at + first, start, stop)
                at += batch.num_rows
                if at >= stop:
                    return


def decompressed(path: Path) -> Any:
    """A binary stream of the contents of a `.zst` file.

    Raises:
        UserError: pyarrow is missing.
    """
    return arrow().input_stream(str(path), compression="zstd")


def _texts(column: Any, at: int, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    first, last = max(start - at, 0), min(stop - at, len(column))
    if last > first:
        part = column[first:last]
        if hasattr(part, "dictionary_decode"):
            part = part.dictionary_decode()
        try:
            texts = part.to_pylist()
        except UnicodeDecodeError:
            texts = [_text(value) for value in part]
        yield from ((at + first + number, text) for number, text in enumerate(texts))


def _text(value: Any) -> Any:
    """A text, or its bytes where they are no UTF-8: Arrow does not look at them."""
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return bytes(value.as_buffer())


@contextmanager
def _record_batches(path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Schema and record batches of an Arrow file in either of its two formats, mapped rather than read."""
    pa = arrow()
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    with pa.memory_map(str(path)) as source:
        if is_file:
            reader = pa.ipc.open_file(source)
            yield reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:  # as the datasets library writes them
            stream = pa.ipc.open_stream(source)
            yield stream.schema, iter(stream)


def _check(schema: Any, field: str, path: Path) -> None:
    if field not in schema.names:
        raise UserError(f"{path}: no column {field!r}; it has {', '.join(map(repr, schema.names)) or 'none'}")
    kind, types = schema.field(field).type, arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise UserError(f"{path}: column {field!r} holds {kind}, not text")


@contextmanager
def _errors(where: Path | str) -> Iterator[None]:
    pa = arrow()
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:  # ArrowInvalid is a ValueError, ArrowIOError an OSError
        raise UserError(f"{where}: damaged, or not what its name says ({str(error).splitlines()[0]})") from error
