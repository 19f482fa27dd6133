"""The batches of one rank: every rank goes through the same batches and takes its turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from .data import DataLoader
from .samplers import Sampler


class BatchShard(Sampler):
    """Batches `rank, rank + ranks, ...` of a batch sampler; all ranks get the same number of full batches.

    What is missing at the end is taken from the beginning again, unless the last batches are dropped.
    """

    def __init__(self, batches: Any, ranks: int, rank: int) -> None:
        self.batch_sampler, self.ranks, self.rank = batches, ranks, rank
        self.batch_size: int = batches.batch_size
        self.drop_last: bool = batches.drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.batch_sampler), self.ranks)
        return whole + int(bool(rest) and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        start: list[int] = []
        turn: list[list[int]] = []
        for batch in self.batch_sampler:
            if len(start) < self.ranks * self.batch_size:
                start += batch
            turn.append(batch)
            if len(turn) == self.ranks and len(batch) == self.batch_size:
                yield turn[self.rank]
                turn = []
        if turn and not self.drop_last:
            yield self._filled(turn, start)[self.rank]

    def _filled(self, turn: list[list[int]], start: list[int]) -> list[list[int]]:
        """The last turn with samples from the start, as often as they are needed."""
        size = self.ranks * self.batch_size
        numbers = [number for batch in turn for number in batch]
        while len(numbers) < size:
            numbers += start
        return [numbers[i : i + self.batch_size] for i in range(0, size, self.batch_size)]


class RemainingBatches(Sampler):
    """A batch sampler without its first batches, which are drawn but not read."""

    def __init__(self, batches: Any, skipped: int) -> None:
        self.batch_sampler, self.skipped = batches, skipped
        self.batch_size, self.drop_last = getattr(batches, "batch_size", None), getattr(batches, "drop_last", False)

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(iter(self.batch_sampler), self.skipped, None)

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.skipped, 0)


def skip_first_batches(loader: Any, skipped: int) -> Iterable[Any]:
    """The batches of a loader after the first `skipped`; those are only read where their order is not known before."""
    if isinstance(loader, DataLoader) and loader.batch_sampler is not None:
        batches = RemainingBatches(loader.batch_sampler, skipped)
        return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn)
    return itertools.islice(loader, skipped, None)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the samplers of a loader, and its data set, which epoch begins."""
    for name in ("batch_sampler", "sampler", "dataset"):
        inner: Any = getattr(loader, name, None)
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(epoch)
        elif name != "dataset" and inner is not None:
            set_epoch(inner, epoch)
