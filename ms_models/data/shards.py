"""MindRecord shards: rows are collected in a plain file, from which a shard is made as soon as there are enough.

The plain file can be cut back to where a preparation last was known to be whole, which a MindRecord file cannot. And
making a shard (about 1 ms a row, most of it in MindSpore's writer) is a job of its own, for another process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from mappings.errors import UserError
from mappings.formats.manifest import FileRecord, hash_file
from ms_models.data.records import Split
from ms_models.data.rows import BYTES_PER_TOKEN, FIELDS, stacked

WRITE_ROWS = 512
LEAST_PAGE, MOST_PAGE, MOST_HEADER = 1 << 16, 1 << 25, 1 << 20
"""MindRecord writes whole pages, of 32 MiB by default, behind a header of 16 MiB: much for a small shard."""
ROW_OVERHEAD = 64
Records = dict[str, FileRecord]
"""The files of one shard."""


class Submit(Protocol):
    """As `Workers.submit`."""

    def __call__(self, function: Callable[[Path, int], Records], path: Path, length: int, /) -> Future[Records]:
        """Calls the function, here or in another process."""


def write_shard(raw: Path, seq_length: int) -> Records:
    """Makes `<name>.mindrecord` and its index from `<name>.rows`.

    Returns:
        Sizes and hashes of the files.

    Raises:
        UserError: they cannot be written; the disk may be full.
    """
    from mindspore.mindrecord import FileWriter

    path = raw.with_suffix(".mindrecord")
    files = [path, path.with_name(f"{path.name}.db")]
    for file in files:
        file.unlink(missing_ok=True)
    try:
        rows = np.fromfile(raw, np.int32).reshape(-1, len(FIELDS), seq_length)
        writer = FileWriter(str(path), shard_num=1)
        page = _page_bytes(raw.stat().st_size, len(rows))
        writer.set_header_size(min(page, MOST_HEADER))
        writer.set_page_size(page)
        writer.add_schema({name: {"type": "int32", "shape": [seq_length]} for name in FIELDS}, "packed sequences")
        for start in range(0, len(rows), WRITE_ROWS):
            writer.write_raw_data([dict(zip(FIELDS, row, strict=True)) for row in rows[start : start + WRITE_ROWS]])
        writer.commit()
        for file in files:
            file.chmod(raw.stat().st_mode)  # MindRecord's own is 0600, whatever the umask
            with file.open("rb") as done:
                os.fsync(done.fileno())
    except (RuntimeError, OSError) as error:  # of MindSpore, and of the disk
        raise UserError(f"{path}: cannot be written ({_reason(error, path.parent)})") from error
    return {file.name: hash_file(file) for file in files}


class ShardWriter:
    """Writes the rows of one split to `<split>-NNNNN.mindrecord` files of about `shard_bytes` of rows each.

    A context manager; `split` is valid after it. `state` and `restore` let another writer go on in the same directory.

    Args:
        directory: where to.
        split: name.
        seq_length: of the rows.
        shard_bytes: size of a shard.
        submit: has `write_shard` called; None calls it here.
    """

    def __init__(
        self, directory: Path, split: str, seq_length: int, shard_bytes: int, submit: Submit | None = None
    ) -> None:
        self.directory, self.name, self.seq_length = directory, split, seq_length
        self.rows_per_shard = max(1, shard_bytes // (seq_length * BYTES_PER_TOKEN))
        self.rows = self.tokens = 0
        self._submit = submit or _at_once
        self._done: list[Records] = []
        self._making: list[Future[Records]] = []
        self._open_rows = 0
        self._file: Any = None

    def __enter__(self) -> ShardWriter:
        return self

    def extend(self, rows: Iterable[Mapping[str, np.ndarray]]) -> None:
        """Appends rows of int32 arrays of `seq_length`."""
        if some := list(rows):
            self.add(stacked(some))

    def add(self, rows: np.ndarray) -> None:
        """Appends rows `[R, 3, S]` int32.

        Raises:
            UserError: the disk is full.
        """
        self.rows += len(rows)
        self.tokens += int(np.count_nonzero(rows[:, 1]))
        while len(rows):
            room = self.rows_per_shard - self._open_rows
            self._append(rows[:room])
            rows = rows[room:]
            if self._open_rows == self.rows_per_shard:
                self._close_shard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._open_rows:
                self._close_shard()
            self.collect(wait=True)
        elif self._file is not None:
            self._file.close()

    def split(self) -> Split:
        """What was written."""
        return Split(self.rows, self.tokens, {name: record for files in self._done for name, record in files.items()})

    def collect(self, *, wait: bool = False, most: int = 0) -> None:
        """Takes notice of shards that are made.

        Args:
            wait: for all of them.
            most: wait while more than this many are under way; 0 waits for none.

        Raises:
            UserError: one could not be written.
        """
        while self._making and (wait or self._making[0].done() or (most and len(self._making) > most)):
            try:
                self._done.append(self._making.pop(0).result())
            except BrokenProcessPool as error:
                raise UserError(f"{self.directory}: a process that writes shards died (out of memory?)") from error

    def state(self) -> dict[str, Any]:
        """What `restore` needs, with everything it speaks of safe on the disk. Shards under way count as rows."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self.collect()
        done = [{name: asdict(record) for name, record in files.items()} for files in self._done]
        return {"rows": self.rows, "tokens": self.tokens, "done": done}

    def remove_raw(self) -> None:
        """Removes the rows of the shards that are made, once a state that says so is safe."""
        for number in range(len(self._done)):
            self._raw(number).unlink(missing_ok=True)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; what was written after it is cut off.

        Raises:
            UserError: the directory does not hold what the state says.
        """
        self.rows, self.tokens = state["rows"], state["tokens"]
        self._done = [{name: FileRecord(**record) for name, record in files.items()} for files in state["done"]]
        for files in self._done:
            for name, record in files.items():
                path = self.directory / name
                if not path.is_file() or path.stat().st_size != record.bytes:
                    raise UserError(f"{path}: missing or cut short; prepare the data anew")
        open_number, self._open_rows = divmod(self.rows, self.rows_per_shard)
        for number in range(len(self._done), open_number + 1):
            expected = self.rows_per_shard if number < open_number else self._open_rows
            raw, size = self._raw(number), expected * self.seq_length * BYTES_PER_TOKEN
            if expected and (not raw.is_file() or raw.stat().st_size < size):
                raise UserError(f"{raw}: missing or cut short; prepare the data anew")
            if raw.is_file():
                os.truncate(raw, size)
            if number < open_number:
                self._making.append(self._submit(write_shard, raw, self.seq_length))
        for raw in self.directory.glob(f"{self.name}-*.rows"):
            if int(raw.stem.rpartition("-")[2]) > open_number:
                raw.unlink()

    def _append(self, rows: np.ndarray) -> None:
        raw = self._raw(len(self._done) + len(self._making))
        try:
            if self._file is None:
                self._file = raw.open("ab")
            self._file.write(np.ascontiguousarray(rows, np.int32).data)
        except OSError as error:
            raise UserError(f"{raw}: cannot be written ({error.strerror})") from error
        self._open_rows += len(rows)

    def _close_shard(self) -> None:
        raw = self._raw(len(self._done) + len(self._making))
        try:
            self._file.close()
        except OSError as error:
            raise UserError(f"{raw}: cannot be written ({error.strerror})") from error
        self._file, self._open_rows = None, 0
        self._making.append(self._submit(write_shard, raw, self.seq_length))

    def _raw(self, number: int) -> Path:
        return self.directory / f"{self.name}-{number:05d}.rows"


def _at_once(function: Callable[[Path, int], Records], path: Path, length: int, /) -> Future[Records]:
    future: Future[Records] = Future()
    future.set_result(function(path, length))
    path.unlink()
    return future


def _page_bytes(size: int, rows: int) -> int:
    """The least power of two that holds all rows, within bounds; a longer row than the bound has a page to itself."""
    row = size // rows + ROW_OVERHEAD
    page = LEAST_PAGE
    while page < row or (page < MOST_PAGE and page < row * rows):
        page *= 2
    return page


def _reason(error: Exception, directory: Path) -> str:
    stat = os.statvfs(directory)
    if stat.f_bavail * stat.f_frsize < 1 << 20:
        return "no space left on device"
    return str(error).strip().splitlines()[0]
