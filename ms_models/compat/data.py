"""Datasets and the loader that makes batches of tensors from them."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .random import Generator, default_generator
from .samplers import BatchSampler, RandomSampler, SequentialSampler


class Dataset:
    """Base class of datasets with `__getitem__` and, usually, `__len__`."""

    def __class_getitem__(cls, item: Any) -> type:
        return cls

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset):
    """Base class of datasets that are only iterated over."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")


class TensorDataset(Dataset):
    """Rows of several tensors of equal length."""

    def __init__(self, *tensors: Tensor) -> None:
        if any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise ValueError("Size mismatch between tensors")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class Subset(Dataset):
    """The samples with the given numbers."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Several datasets one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} samples")
        index %= len(self)
        number = bisect.bisect_right(self.cumulative_sizes, index)
        start = self.cumulative_sizes[number - 1] if number else 0
        return self.datasets[number][index - start]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(dataset: Any, lengths: Sequence[float], generator: Generator | None = None) -> list[Subset]:
    """Random disjoint subsets of the given sizes, or of the given shares when they sum to 1.

    Raises:
        ValueError: sizes do not sum to the length of the dataset.
    """
    total = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        sizes = [math.floor(total * share) for share in lengths]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(n) for n in lengths]
    if sum(sizes) != total:
        raise ValueError("Sum of input lengths does not equal the length of the input dataset!")
    order = (generator or default_generator).numpy.permutation(total).tolist()
    ends = itertools.accumulate(sizes)
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples into tensors: numbers, arrays and tensors are stacked, tuples, lists and mappings taken apart.

    Raises:
        TypeError: a sample holds something else.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return ops.stack(list(batch))
    if isinstance(first, np.ndarray | np.generic):
        return Tensor(np.stack([np.asarray(b) for b in batch]))
    if isinstance(first, bool | int):
        return Tensor(list(batch), ms.bool_ if isinstance(first, bool) else ms.int64)
    if isinstance(first, float):
        return Tensor(list(batch), ms.float64)
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([b[key] for b in batch]) for key in first}
    if isinstance(first, tuple | list):
        if any(len(b) != len(first) for b in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*columns)
        return columns
    raise TypeError(
        f"default_collate: batch must contain tensors, arrays, numbers, dicts or lists; found {type(first)}"
    )


class DataLoader:
    """Batches of a dataset.

    `num_workers`, `pin_memory`, `prefetch_factor`, `persistent_workers`, `timeout`, `worker_init_fn` and
    `multiprocessing_context` are accepted and have no effect: samples are read in the calling process.
    """

    def __class_getitem__(cls, item: Any) -> type:
        return cls

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        self.dataset = dataset
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "an IterableDataset has its own order: shuffle, sampler and batch_sampler must be left out"
            )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
        self.num_workers, self.pin_memory, self.generator = num_workers, pin_memory, generator
        self.drop_last = drop_last
        self.batch_size = None if batch_sampler is not None else batch_size
        if sampler is None and not self._iterable:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_sampler is None and batch_size is not None and sampler is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or (default_collate if self._batched else _as_tensor)

    @property
    def _batched(self) -> bool:
        return self.batch_sampler is not None or self.batch_size is not None

    def __iter__(self) -> Iterator[Any]:
        if self._iterable:
            samples = iter(self.dataset)
            if self.batch_size is None:
                yield from (self.collate_fn(s) for s in samples)
                return
            while batch := list(itertools.islice(samples, self.batch_size)):
                if len(batch) == self.batch_size or not self.drop_last:
                    yield self.collate_fn(batch)
        elif self.batch_sampler is not None:
            for numbers in self.batch_sampler:
                yield self.collate_fn([self.dataset[i] for i in numbers])
        else:
            assert self.sampler is not None
            for number in self.sampler:
                yield self.collate_fn(self.dataset[number])

    def __len__(self) -> int:
        if self._iterable:
            count = len(self.dataset)
            if self.batch_size is None:
                return count
            return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]


def _as_tensor(sample: Any) -> Any:
    """Without batches, arrays become tensors and everything else stays."""
    return Tensor(sample) if isinstance(sample, np.ndarray) else sample
