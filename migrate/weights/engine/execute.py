"""Carries out a plan in threads: units along the target files, a journal of what is safe, digests at the end."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from mappings.errors import UserError
from mappings.formats.manifest import FileRecord, hash_file
from migrate.weights.engine.file_users import FileUsers
from migrate.weights.engine.files import Files
from migrate.weights.engine.forms import image
from migrate.weights.engine.journal import Journal
from migrate.weights.engine.mover import Mover, Stopped
from migrate.weights.engine.plan import Plan
from migrate.weights.engine.reading import Places

MIN_BUDGET = 1 << 20  # bytes per thread
SYNC_BYTES = 256 << 20  # after so many bytes, or so many seconds, finished work is made safe
SYNC_SECONDS = 5.0


@dataclass
class Done:
    """What a copy did."""

    bytes_read: int = 0
    bytes_written: int = 0
    files: dict[str, FileRecord] = field(default_factory=dict)
    """Size and digest of each target file."""
    resumed: int = 0
    """Batches that an earlier run had finished."""


def check_budget(memory_budget: int, threads: int) -> None:
    """Refuses a budget that the threads cannot share.

    Raises:
        UserError: the budget or the number of threads is too small to work with.
    """
    if threads < 1:
        raise UserError(f"threads must be at least 1, found {threads}")
    if memory_budget < MIN_BUDGET * threads:
        raise UserError(
            f"memory budget of {memory_budget} bytes is too small for {threads} threads: give {MIN_BUDGET * threads}"
        )


def execute(
    plan: Plan,
    directory: Path,
    *,
    memory_budget: int,
    threads: int,
    advance: Callable[[int], None],
    journal: Journal | None = None,
) -> Done:
    """Writes every file of a plan into a directory, fsynced.

    Args:
        plan: a proved plan.
        directory: an existing directory; files of the plan that are in it are overwritten where no journal says that
            they are right.
        memory_budget: bytes that all buffers together may take.
        threads: copying threads.
        advance: told how many bytes were written since the last call; called by one thread at a time.
        journal: where finished work is noted, and read from.

    Raises:
        UserError: a read or write failed; the message names the tensor.
    """
    check_budget(memory_budget, threads)
    return _Run(plan, directory, memory_budget, threads, advance, journal).run()


class _Run:
    """Shared state of the threads."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        memory_budget: int,
        threads: int,
        advance: Callable[[int], None],
        journal: Journal | None,
    ) -> None:
        self.plan, self.directory, self.journal = plan, directory, journal
        self.threads, self.budget = threads, memory_budget // threads
        self.advance = advance
        self.files = Files()
        self.lock = threading.Condition()
        self.stopped = False
        lost = self._lost() if journal is not None and (journal.batches or journal.files) else set()
        finished = set(journal.batches) if journal is not None else set()
        if lost:
            writes = FileUsers(plan, ())
            finished -= {number for number in finished if not lost.isdisjoint(writes.of(number))}
        names = {plan.files[number].name for number in lost}
        records = journal.files if journal is not None else {}
        self.done = Done(resumed=len(finished), files={n: r for n, r in records.items() if n not in names})
        self.waiting = deque(n for n in range(len(plan.batches) - 1) if n not in finished)
        self.to_hash: deque[int] = deque()
        self.finished: SimpleQueue[tuple[str, object]] = SimpleQueue()
        self.users = FileUsers(plan, self.waiting)
        self.unsafe = set(range(len(plan.files)))
        """Files with bytes that may be in memory only."""

    def run(self) -> Done:
        places = self._create()
        self._report_resumed()
        movers = [
            Mover(self.plan, places, self.files, self.budget, self._advance, lambda: self.stopped)
            for _ in range(self.threads)
        ]
        workers = [threading.Thread(target=self._work, args=(mover,), daemon=True) for mover in movers]
        try:
            complete = self.users.complete()
            self._hash(complete)
            for worker in workers:
                worker.start()
            for number in complete:
                self._sync(number)
            self._follow()
        finally:
            with self.lock:
                self.stopped = True
                self.lock.notify_all()
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            self.files.close()
        for mover in movers:
            self.done.bytes_read += mover.bytes_read + mover.reader.bytes_read
            self.done.bytes_written += mover.bytes_written
        return self.done

    def _lost(self) -> set[int]:
        """Files that somebody removed or cut after an earlier run, which made them at full length at its start."""
        paths = ((number, self.directory / file.name, image(file).size) for number, file in enumerate(self.plan.files))
        return {number for number, path, size in paths if not path.is_file() or path.stat().st_size < size}

    def _create(self) -> Places:
        """Target files with their headers, at full length; padding is never written, for a hole reads as zeros."""
        paths: list[Path] = []
        offsets: list[int] = []
        for file in self.plan.files:
            path = self.directory / file.name
            frame = image(file)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("r+b" if path.exists() else "xb") as stream:
                    for offset, data in frame.frames:
                        stream.seek(offset)
                        stream.write(data)
                    stream.truncate(frame.size)
            except OSError as error:
                raise UserError(f"{path}: cannot be written ({error.strerror})") from error
            paths += [path] * len(frame.offsets)
            offsets += frame.offsets
        sources = self.plan.sources
        return Places([s.path for s in sources], [s.offset for s in sources], paths, offsets)

    def _report_resumed(self) -> None:
        if self.done.resumed:
            copies = self.plan.copies
            total = int((copies.volume * self.plan.write_sizes[copies.target]).sum())
            self.advance(total - sum(self._size(number) for number in self.waiting))

    def _size(self, batch: int) -> int:
        rows = slice(*(int(self.plan.units[self.plan.batches[batch + n]]) for n in (0, 1)))
        part = self.plan.copies.take(rows)
        return int((part.volume * self.plan.write_sizes[part.target]).sum())

    # Threads

    def _work(self, mover: Mover) -> None:
        name = ""
        try:
            while not self.stopped:
                job, number = self._next()
                if job == "hash":
                    name = self.plan.files[number].name
                    self.finished.put(("file", (number, hash_file(self.directory / name))))
                elif job == "batch":
                    for unit in mover.batch(number):
                        name = mover.name(unit)
                    self.finished.put(("batch", number))
                else:
                    return
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self.finished.put(("error", (name, error)))

    def _next(self) -> tuple[str, int]:
        """The next file to hash or batch to copy; waits while there may be another one."""
        with self.lock:
            while not self.stopped:
                if self.to_hash:
                    return "hash", self.to_hash.popleft()
                if self.waiting:
                    return "batch", self.waiting.popleft()
                if not self.users.open_files:
                    break
                self.lock.wait()
            return "end", 0

    def _advance(self, amount: int) -> None:
        with self.lock:
            self.advance(amount)

    # The main thread

    def _follow(self) -> None:
        """Makes finished batches safe from time to time, and files when their last batch is in."""
        unsafe: list[int] = []
        last = time.monotonic()
        size = 0
        while self.users.open_files:
            kind, value = self.finished.get()
            if kind == "error":
                assert isinstance(value, tuple)
                self._fail(*value)
            if kind == "file":
                assert isinstance(value, tuple)
                self._hashed(*value)
                continue
            assert isinstance(value, int)
            unsafe.append(value)
            self.unsafe.update(self.users.of(value))
            size += self._size(value)
            complete = self.users.finished(value)
            self._hash(complete)  # out of the page cache, while the disk takes the same bytes
            if complete or size > SYNC_BYTES or time.monotonic() - last > SYNC_SECONDS:
                self._make_safe(unsafe)
                unsafe, size, last = [], 0, time.monotonic()
            for number in complete:
                self._sync(number)

    def _make_safe(self, batches: list[int]) -> None:
        if self.journal is not None:
            for number in sorted({file for batch in batches for file in self.users.of(batch)}):
                self._sync(number)
            self.journal.add_batches(batches)

    def _sync(self, number: int) -> None:
        if number not in self.unsafe:
            return
        self.unsafe.discard(number)
        name = self.plan.files[number].name
        try:
            with self.files.use(self.directory / name, writing=True) as fd:
                os.fsync(fd)
        except OSError as error:
            raise UserError(f"{self.directory / name}: cannot be made safe ({error.strerror})") from error

    def _hash(self, complete: Iterable[int]) -> None:
        """All batches of these files are in: they are hashed unless an earlier run did.

        Their records are looked at by this thread only, thus after it has made the files safe.
        """
        with self.lock:
            for number in complete:
                if self.plan.files[number].name in self.done.files:
                    self.users.close(number)
                else:
                    self.to_hash.append(number)
            self.lock.notify_all()

    def _hashed(self, number: int, record: FileRecord) -> None:
        name = self.plan.files[number].name
        self.done.files[name] = record
        if self.journal is not None:
            self.journal.add_file(name, record)
        with self.lock:
            self.users.close(number)
            self.lock.notify_all()

    def _fail(self, name: str, error: BaseException) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise UserError(f"tensor {name!r}: copying failed: {reason}") from error
        if isinstance(error, MemoryError):
            raise UserError(f"tensor {name!r}: copying failed: out of memory; give a smaller memory budget") from error
        if isinstance(error, UserError):
            raise UserError(f"tensor {name!r}: {error}") from error
        raise error
