"""`Staging`: the directory that prepared data grows in, and the journal from which an interrupted preparation goes on.

The journal names how many tasks are done, what every part of the preparation knew then, and the packers' left-overs. It
is replaced at once, after everything it speaks of is safe on the disk. So whenever the preparation dies, the files hold
at least what the journal says; the rest is cut off and made again, to the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import fsync_directory

JOURNAL, ARRAYS, LOCK = "journal.json", "left-overs-{}.npz", "lock"
INTERVAL_S = 15.0
"""Work that is lost at most, beside the task that is under way."""
Arrays = Mapping[str, Mapping[str, np.ndarray]]


class Staging:
    """A context manager over `.NAME.partial` beside the directory to make.

    While it is open, no other preparation can write there. When the block ends without `publish`, the directory stays
    if it has a journal, and is removed otherwise.
    """

    def __init__(self, out: Path, *, fresh: bool = False) -> None:
        self.out, self.directory = out, out.with_name(f".{out.name}.partial")
        self.fresh = fresh
        self._lock: Any = None
        self._number = 0
        self._written = time.monotonic()
        self._is_published = False

    def __enter__(self) -> Staging:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self.directory / LOCK).open("w")
        except OSError as error:
            raise UserError(f"{self.directory}: cannot be made ({error.strerror})") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(f"{self.directory}: another preparation is writing there") from error
        if self.fresh or not self.has_journal:
            self._clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_published and not self.has_journal:
            shutil.rmtree(self.directory, ignore_errors=True)  # an error is under way already
        self._lock.close()

    @property
    def has_journal(self) -> bool:
        """Whether there is work to go on from."""
        return (self.directory / JOURNAL).is_file()

    def is_due(self, interval_s: float) -> bool:
        """Whether the last journal is old enough."""
        return time.monotonic() - self._written >= interval_s

    def read(self) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
        """What `write` was given last.

        Raises:
            UserError: the journal is damaged.
        """
        body = read_json(self.directory / JOURNAL)
        try:
            self._number = body["number"]
            with np.load(self.directory / ARRAYS.format(self._number)) as stored:
                arrays: dict[str, dict[str, np.ndarray]] = {}
                for name in stored.files:
                    owner, _, part = name.partition("/")
                    arrays.setdefault(owner, {})[part] = stored[name]
            return body["state"], arrays
        except (KeyError, TypeError, OSError, ValueError) as error:
            raise UserError(f"{self.directory / JOURNAL}: damaged ({error}); remove {self.directory}") from error

    def write(self, state: Mapping[str, Any], arrays: Arrays) -> None:
        """Replaces the journal.

        Raises:
            UserError: the disk is full.
        """
        before, self._number = self._number, self._number + 1
        file = self.directory / ARRAYS.format(self._number)
        flat = {f"{owner}/{part}": array for owner, parts in arrays.items() for part, array in parts.items()}
        try:
            with file.open("wb") as output:
                np.savez(output, **flat)
                _sync(output)
            new = self.directory / f"{JOURNAL}.new"
            with new.open("w", encoding="utf-8") as text:
                json.dump({"number": self._number, "state": state}, text)
                _sync(text)
            new.replace(self.directory / JOURNAL)
            fsync_directory(self.directory)
        except OSError as error:
            raise UserError(f"{self.directory}: the journal cannot be written ({error.strerror})") from error
        (self.directory / ARRAYS.format(before)).unlink(missing_ok=True)
        self._written = time.monotonic()

    def publish(self) -> None:
        """Gives the finished directory its name, without what only the preparation needs."""
        for pattern in (f"{JOURNAL}*", ARRAYS.format("*"), "*.rows", LOCK):
            for path in self.directory.glob(pattern):
                path.unlink()
        if self.out.is_dir():
            self.out.rmdir()
        self.directory.rename(self.out)
        fsync_directory(self.out.parent)
        self._is_published = True

    def _clear(self) -> None:
        for path in self.directory.iterdir():
            if path.name != LOCK:
                path.unlink()


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
