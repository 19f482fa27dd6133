"""The journal of a conversion: which plan it follows, and what of it is safe on disk."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.manifest import FileRecord, fsync_directory
from migrate.weights.engine.plan import Plan

FORMAT = "msmigrate-journal-1"


class Journal:
    """Lines of JSON. The first says what is converted; a torn last one is ignored.

    The file is locked as long as the journal is open: two conversions to one output cannot run at once.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes a journal, and reads it.

        Raises:
            UserError: another process holds it, or it cannot be written.
        """
        self.path = path
        self.batches: set[int] = set()
        self.files: dict[str, FileRecord] = {}
        self.published = False
        self._head: Mapping[str, Any] | None = None
        while True:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise UserError(f"{path}: cannot be written ({error.strerror})") from error
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                raise UserError(f"{path}: another conversion to this output is running") from error
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.close(self._fd)
                raise UserError(f"{path}: is no regular file; remove it")
            if _is_at(self._fd, path):
                break
            os.close(self._fd)  # its owner ended and removed it meanwhile: the lock of a deleted file keeps nobody out
        self._read()

    @property
    def begun(self) -> bool:
        """Whether it holds the work of an earlier run."""
        return self._head is not None

    def begin(self, head: Mapping[str, Any]) -> None:
        """Says what is converted; an earlier run must have said the same.

        Raises:
            UserError: it did not; the message says what differs.
        """
        head = {"format": FORMAT, **head}
        if self._head is None:
            self._append(head)
            fsync_directory(self.path.parent)
            self._head = head
        elif self._head != head:
            differs = sorted(key for key in {*head, *self._head} if head.get(key) != self._head.get(key))
            raise UserError(
                f"{self.path}: was begun for another conversion ({', '.join(differs)} differ); "
                "start again without --resume"
            )

    def add_batches(self, batches: Iterable[int]) -> None:
        """Notes batches whose bytes are safe."""
        numbers = sorted(batches)
        if numbers:
            self._append({"batches": numbers})
            self.batches.update(numbers)

    def add_file(self, name: str, record: FileRecord) -> None:
        """Notes a finished file; if the line is lost, the file is hashed again."""
        self._append({"file": name, "bytes": record.bytes, "sha256": record.sha256}, safe=False)
        self.files[name] = record

    def publishing(self) -> None:
        """Notes that the directory is complete and takes its place."""
        if not self.published:
            self._append({"publishing": True})
            self.published = True

    def clear(self) -> None:
        """Forgets everything."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.batches, self.files, self.published, self._head = set(), {}, False, None

    def close(self) -> None:
        """Gives up the lock; again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Deletes the journal and gives up the lock; again does nothing."""
        if self._fd >= 0:  # without the lock, the file is another process's
            self.path.unlink(missing_ok=True)
            self.close()

    def _append(self, line: Mapping[str, Any], *, safe: bool = True) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._fd, data) :]
            if safe:
                os.fsync(self._fd)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _read(self) -> None:
        with open(os.dup(self._fd), "rb") as file:
            file.seek(0)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        os.ftruncate(self._fd, len(whole))
        os.lseek(self._fd, len(whole), os.SEEK_SET)
        try:
            for text in whole.splitlines():
                self._take(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):  # not written by this version: not to be trusted
            self.clear()

    def _take(self, line: Mapping[str, Any]) -> None:
        if self._head is None:
            if line["format"] != FORMAT:
                raise ValueError
            self._head = dict(line)
        elif "batches" in line:
            self.batches.update(int(number) for number in line["batches"])
        elif "file" in line:
            self.files[line["file"]] = FileRecord(line["bytes"], line["sha256"])
        else:
            self.published = bool(line["publishing"])


def _is_at(fd: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def head_of(plan: Plan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a journal says about a conversion: digest of the plan, size and time of every source file.

    Raises:
        UserError: a source file is gone.
    """
    paths = {source.path for source in plan.sources if source.decoder is None}
    paths |= {part.path for source in plan.sources if source.decoder is not None for part in source.decoder.parts}
    sources = {}
    for path in sorted(paths):
        try:
            status = path.stat()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        sources[str(path)] = [status.st_size, status.st_mtime_ns]
    return {"plan": plan.digest, "sources": sources, **settings}
