"""Samplers: the order in which a loader takes the samples of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from .random import Generator, default_generator


class Sampler:
    """Base class: an iterable of sample numbers, or of lists of them."""

    def __init__(self, data_source: Any = None) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """A random order, new in every pass; with `replacement` or more `num_samples` than the data, samples repeat."""

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self.num_samples = len(data_source) if num_samples is None else num_samples
        self.generator = generator
        if self.num_samples < 0:
            raise ValueError(f"num_samples must not be negative, but got {num_samples}")

    def __iter__(self) -> Iterator[int]:
        source = (self.generator or default_generator).numpy
        count = len(self.data_source)
        if self.replacement:
            yield from source.integers(0, count, self.num_samples).tolist()
            return
        left = self.num_samples
        while left > 0:
            order = source.permutation(count).tolist()[:left]
            yield from order
            left -= len(order)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given numbers in a random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = (self.generator or default_generator).numpy.permutation(len(self.indices))
        return (self.indices[i] for i in order.tolist())

    def __len__(self) -> int:
        return len(self.indices)


class BatchSampler(Sampler):
    """Lists of `batch_size` numbers from another sampler."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got {batch_size}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for number in self.sampler:
            batch.append(number)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


class DistributedSampler(Sampler):
    """Each rank's share of a dataset: numbers `rank, rank + num_replicas, ...` of one common order."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} must be between 0 and {num_replicas - 1}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        count = len(dataset)
        self.num_samples = count // num_replicas if drop_last else -(-count // num_replicas)

    def __iter__(self) -> Iterator[int]:
        count, total = len(self.dataset), self.num_samples * self.num_replicas
        order = list(range(count))
        if self.shuffle:
            order = Generator().manual_seed(self.seed + self.epoch).numpy.permutation(count).tolist()
        order = [order[i % count] for i in range(total)] if count else []
        return iter(order[self.rank : total : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch
