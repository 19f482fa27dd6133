"""Carries out a plan: byte ranges from source files to target files, in threads, within a memory budget.

A piece that is one contiguous range is copied inside the kernel (`copy_file_range`) or, where a file system refuses,
through a bounded buffer. Pieces cut along a later axis go through blocks of whole rows: every source row is read once
for all targets, every target row is written once.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from mappings.formats.safetensors import build_header
from migrate.weights.plan import Assignment, Piece, Plan, Target, extent

KERNEL_CHUNK = 64 << 20  # bytes per copy_file_range call, so that progress moves
MAX_BLOCK = 16 << 20  # larger buffers gain nothing
MIN_BUDGET = 1 << 20
# What copy_file_range answers where it cannot serve; any other error is a real one.
NOT_SERVED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
SPARE_DESCRIPTORS = 32


@dataclass(frozen=True)
class Moved:
    """What a copy did."""

    bytes_read: int
    bytes_written: int


def block_bytes(memory_budget: int, threads: int) -> int:
    """Buffer size of one thread under a budget for all of them.

    Raises:
        UserError: the budget or the number of threads is too small to work with.
    """
    if threads < 1:
        raise UserError(f"threads must be at least 1, found {threads}")
    if memory_budget < MIN_BUDGET * threads:
        raise UserError(
            f"memory budget of {memory_budget} bytes is too small for {threads} threads: give {MIN_BUDGET * threads}"
        )
    return min(MAX_BLOCK, memory_budget // threads)


def execute(plan: Plan, directory: Path, *, memory_budget: int, threads: int, advance: Callable[[int], None]) -> Moved:
    """Writes every file of the plan into `directory`, fsynced.

    Args:
        plan: a proved plan.
        directory: an existing directory that holds none of the files.
        memory_budget: bytes that all buffers together may take.
        threads: copying threads.
        advance: told how many bytes were written since the last call; called by one thread at a time.

    Raises:
        UserError: a read or write failed; the message names the tensor. The directory is then incomplete.
    """
    block = block_bytes(memory_budget, threads)
    with ExitStack() as stack:
        copier = _Copier(plan, directory, block, advance, stack)
        # Largest first, so that no thread is left alone with a big tensor at the end.
        order = sorted(plan.assignments, key=lambda a: -sum(target.nbytes for target in a.targets))
        with ThreadPoolExecutor(threads, thread_name_prefix="copy") as pool:
            try:
                futures = [pool.submit(copier.run, assignment) for assignment in order]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                copier.stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        for future in done:
            future.result()
        copier.sync()
        return Moved(copier.bytes_read, copier.bytes_written)


class _Copier:
    """Open files, counters and the copying of one assignment at a time per thread."""

    def __init__(
        self, plan: Plan, directory: Path, block: int, advance: Callable[[int], None], stack: ExitStack
    ) -> None:
        self.block, self.advance = block, advance
        # Set once all is done, or on the first failure: then nobody starts another block.
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.bytes_read = self.bytes_written = 0
        sources = sorted({source.entry.path for a in plan.assignments for source in a.sources})
        _allow_descriptors(len(sources) + len(plan.files))
        self.sources = {path: _open(path, os.O_RDONLY, stack) for path in sources}
        self.targets: dict[str, int] = {}
        self.offsets: dict[tuple[str, str], int] = {}
        for file in plan.files:
            header, spans = build_header([(t.name, t.dtype, t.shape) for t in file.targets], file.metadata)
            fd = _open(directory / file.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, stack)
            _write_all(fd, memoryview(header), 0)
            # Padding is never written: a file extended by truncation reads as zeros.
            os.ftruncate(fd, len(header) + sum(nbytes for _, nbytes in spans.values()))
            self.targets[file.name] = fd
            self.offsets.update({(file.name, name): offset for name, (offset, _) in spans.items()})

    def run(self, assignment: Assignment) -> None:
        try:
            strided = []
            for piece in assignment.pieces:
                span = _Span.of(assignment, piece)
                if span.contiguous:
                    self._contiguous(piece, span)
                else:
                    strided.append((piece, span))
            if strided:
                self._rows(assignment, strided)
        except OSError as error:
            self.stop.set()
            reason = error.strerror or str(error)
            raise UserError(f"tensor {assignment.name!r}: copying failed: {reason}; nothing was kept") from error
        except BaseException:
            self.stop.set()
            raise

    def sync(self) -> None:
        for fd in self.targets.values():
            os.fsync(fd)

    def _count(self, read: int, written: int) -> None:
        with self.lock:
            self.bytes_read += read
            self.bytes_written += written
            self.advance(written)

    def _contiguous(self, piece: Piece, span: _Span) -> None:
        source, target = self.sources[piece.source.entry.path], self.targets[piece.target.file]
        read_at = piece.source.entry.offset + span.source_column
        write_at = self.offsets[piece.target.file, piece.target.name] + span.target_column
        left = span.rows * span.width
        while left and not self.stop.is_set():
            done = _kernel_copy(source, target, min(left, KERNEL_CHUNK), read_at, write_at)
            if not done:
                buffer = memoryview(bytearray(min(left, self.block)))
                done = len(buffer)
                _read_all(source, buffer, read_at)
                _write_all(target, buffer, write_at)
            self._count(done, done)
            read_at, write_at, left = read_at + done, write_at + done, left - done

    def _rows(self, assignment: Assignment, strided: list[tuple[Piece, _Span]]) -> None:
        """Copies pieces that share the number of rows; together they cover all columns of every target."""
        rows = strided[0][1].rows
        sources = {id(p.source): (p.source.entry, span.source_row) for p, span in strided}
        by_target: dict[Target, list[tuple[Piece, _Span]]] = {}
        for piece, span in strided:
            by_target.setdefault(piece.target, []).append((piece, span))
        widest = max(span.target_row for _, span in strided)
        per_block = self.block // (sum(row for _, row in sources.values()) + widest)
        if not per_block:
            raise UserError(f"tensor {assignment.name!r}: one row does not fit the memory budget; give a larger one")
        for first in range(0, rows, per_block):
            if self.stop.is_set():
                return
            count = min(per_block, rows - first)
            blocks = {}
            for key, (entry, row) in sources.items():
                blocks[key] = np.empty((count, row), np.uint8)
                _read_all(self.sources[entry.path], blocks[key].data.cast("B"), entry.offset + first * row)
                self._count(count * row, 0)
            for target, pieces in by_target.items():
                row = pieces[0][1].target_row
                block = np.empty((count, row), np.uint8)
                for piece, span in pieces:
                    taken = blocks[id(piece.source)][:, span.source_column : span.source_column + span.width]
                    block[:, span.target_column : span.target_column + span.width] = taken
                at = self.offsets[target.file, target.name] + first * row
                _write_all(self.targets[target.file], block.data.cast("B"), at)
                self._count(0, block.nbytes)


@dataclass(frozen=True)
class _Span:
    """A piece in bytes: in each of `rows` rows, `width` bytes from a column of the source to one of the target."""

    rows: int
    width: int
    source_row: int
    source_column: int
    target_row: int
    target_column: int

    @classmethod
    def of(cls, assignment: Assignment, piece: Piece) -> _Span:
        shape, axis = piece.source.entry.shape, assignment.axis
        inner = math.prod(shape[axis + 1 :]) * piece.source.entry.itemsize
        return cls(
            rows=math.prod(shape[:axis]),
            width=piece.count * inner,
            source_row=extent(shape, axis) * inner,
            source_column=piece.source_start * inner,
            target_row=extent(piece.target.shape, axis) * inner,
            target_column=piece.target_start * inner,
        )

    @property
    def contiguous(self) -> bool:
        return self.rows == 1 or self.width == self.source_row == self.target_row


def _kernel_copy(source: int, target: int, count: int, read_at: int, write_at: int) -> int:
    """Bytes copied inside the kernel; 0 where the file systems do not offer it."""
    try:
        return os.copy_file_range(source, target, count, read_at, write_at)
    except OSError as error:
        if error.errno in NOT_SERVED:
            return 0
        raise


def _read_all(fd: int, buffer: memoryview, offset: int) -> None:
    while buffer:
        done = os.preadv(fd, [buffer], offset)
        if not done:
            raise OSError(errno.EIO, "the source file became shorter than its header says")
        buffer, offset = buffer[done:], offset + done


def _write_all(fd: int, buffer: memoryview, offset: int) -> None:
    while buffer:
        done = os.pwrite(fd, buffer, offset)
        buffer, offset = buffer[done:], offset + done


def _open(path: Path, flags: int, stack: ExitStack) -> int:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror})") from error
    stack.callback(os.close, fd)
    return fd


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and needed > soft:
        if hard != resource.RLIM_INFINITY and needed > hard:
            raise UserError(f"{count} files must be open at once, the limit is {hard}; raise it with ulimit -n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
