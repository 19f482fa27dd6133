"""Files that grow, read as they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tail:
    """Gives the whole lines that were appended to a file since the last look; of a file that was replaced, all."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._position = path.stat().st_size if from_end and path.is_file() else 0
        self._inode: int | None = path.stat().st_ino if path.is_file() else None

    def lines(self) -> list[str]:
        """The new lines."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            found = self._path.stat()
            if self._inode is not None and (found.st_ino != self._inode or found.st_size < self._position):
                self._position = 0
            self._inode = found.st_ino
            file.seek(self._position)
            new = file.read()
        complete = new[: new.rfind(b"\n") + 1]
        self._position += len(complete)
        return complete.decode("utf-8", errors="replace").splitlines()

    def records(self) -> Iterator[dict[str, Any]]:
        """The new lines as JSON objects."""
        for line in self.lines():
            yield json.loads(line)
