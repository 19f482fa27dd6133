"""Open files, no more of them than the system allows."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SPARE = 64  # descriptors left to the rest of the process
MOST = 1024  # more gain nothing


@dataclass(slots=True)
class _Open:
    fd: int
    users: int


class Files:
    """Descriptors by path, opened when first used; those not used for longest are closed when there are too many."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit or descriptor_limit()
        self._open: OrderedDict[tuple[Path, bool], _Open] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def use(self, path: Path, *, writing: bool = False) -> Iterator[int]:
        """A descriptor that stays open inside the block.

        Raises:
            OSError: the file cannot be opened.
        """
        key = (path, writing)
        with self._lock:
            held = self._open.get(key)
            if held is None:
                self._make_room()
                flags = os.O_RDWR if writing else os.O_RDONLY
                held = self._open[key] = _Open(os.open(path, flags | os.O_CLOEXEC), 0)
            else:
                self._open.move_to_end(key)
            held.users += 1
        try:
            yield held.fd
        finally:
            with self._lock:
                held.users -= 1

    def close(self) -> None:
        """Closes all."""
        with self._lock:
            for held in self._open.values():
                os.close(held.fd)
            self._open.clear()

    def _make_room(self) -> None:
        if len(self._open) < self.limit:
            return
        for key, held in self._open.items():
            if not held.users:
                os.close(held.fd)
                del self._open[key]
                return


def descriptor_limit() -> int:
    """How many files may be kept open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return max(4, min(MOST, soft - used - SPARE))


def read_into(fd: int, buffer: memoryview, offset: int) -> None:
    """Fills a buffer.

    Raises:
        OSError: the file ends before.
    """
    while buffer:
        done = os.preadv(fd, [buffer], offset)
        if not done:
            raise OSError(errno.EIO, "the source file became shorter than its header says")
        buffer, offset = buffer[done:], offset + done


def write_all(fd: int, buffer: memoryview, offset: int) -> None:
    """Writes a buffer."""
    while buffer:
        done = os.pwrite(fd, buffer, offset)
        buffer, offset = buffer[done:], offset + done
