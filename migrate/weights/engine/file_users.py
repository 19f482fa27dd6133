"""Which batches write to which target files, so that a file is finished with its last batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from migrate.weights.engine.plan import Plan


class FileUsers:
    """Which files a batch writes to, and which files still wait for a batch or for their digest."""

    def __init__(self, plan: Plan, waiting: Iterable[int]) -> None:
        batches = np.repeat(np.arange(len(plan.batches) - 1), np.diff(plan.units[plan.batches]))
        pairs = np.unique(np.column_stack([batches, plan.file_of[plan.copies.target]]), axis=0)
        self._files = pairs[:, 1]
        self._first = np.searchsorted(pairs[:, 0], np.arange(len(plan.batches)))
        self.open_files = set(range(len(plan.files)))
        self._left: dict[int, int] = dict.fromkeys(self.open_files, 0)
        for batch in waiting:
            for file in self.of(batch):
                self._left[file] += 1

    def of(self, batch: int) -> list[int]:
        """Files that a batch writes to."""
        return self._files[self._first[batch] : self._first[batch + 1]].tolist()

    def complete(self) -> list[int]:
        """Files that wait for no batch."""
        return [file for file, left in self._left.items() if not left]

    def finished(self, batch: int) -> list[int]:
        """Notes a batch; files that waited for no other."""
        files = self.of(batch)
        for file in files:
            self._left[file] -= 1
        return [file for file in files if not self._left[file]]

    def close(self, file: int) -> None:
        """Notes that a file has its digest."""
        self.open_files.discard(file)
