"""Random orders that are those of torch for the same seed: what a trainer shuffles its data with."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np

from .random import initial_seed
from .samplers import Sampler


def permutation(count: int, seed: int) -> list[int]:
    """The order that torch's `randperm` gives right after its generator on the CPU was seeded.

    torch draws 32-bit numbers from a Mersenne Twister (seeded by its low 32 bits, Matsumoto and Nishimura, 2002) and
    swaps from the front (Fisher and Yates); numpy has the same generator.
    """
    source = np.random.MT19937()
    source._legacy_seeding(seed % 2**32)
    order = list(range(count))
    draws = source.random_raw(max(count - 1, 0))
    for place in range(count - 1):
        other = place + int(draws[place]) % (count - place)
        order[place], order[other] = order[other], order[place]
    return order


class SeededRandomSampler(Sampler):
    """A random order for every epoch, from the seed plus the number of the epoch.

    Args:
        data_source: the data set.
        seed: by default the one that `manual_seed` was last called with.
    """

    def __init__(self, data_source: Sized, seed: int | None = None) -> None:
        self.data_source = data_source
        self.initial_seed = initial_seed() if seed is None else seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        yield from permutation(len(self.data_source), self.initial_seed + self.epoch)
        self.epoch += 1

    def __len__(self) -> int:
        return len(self.data_source)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch


class LengthGroupedSampler(Sampler):
    """Samples of about the same length side by side, in an order that is random otherwise.

    A random order is cut into large groups, each is sorted by length, and the longest sample of all comes first.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int | None = None) -> None:
        self.lengths, self.batch_size = lengths, batch_size
        self.initial_seed = initial_seed() if seed is None else seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        count = len(self.lengths)
        order = permutation(count, self.initial_seed + self.epoch)
        size = self.batch_size * max(1, min(count // (self.batch_size * 4), 50))
        groups = [
            sorted(order[i : i + size], key=lambda n: self.lengths[n], reverse=True) for i in range(0, count, size)
        ]
        longest = max(range(len(groups)), key=lambda g: self.lengths[groups[g][0]])
        groups[0][0], groups[longest][0] = groups[longest][0], groups[0][0]
        yield from (number for group in groups for number in group)
        self.epoch += 1

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch
