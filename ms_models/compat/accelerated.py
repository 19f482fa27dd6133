"""Optimizers, schedules and loaders of an `Accelerator`, which act at the last batch before an update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .batch_shards import BatchShard, set_epoch
from .data import DataLoader
from .samplers import BatchSampler, RandomSampler
from .seeded_order import SeededRandomSampler


class GradientState:
    """Where a training loop is: before an update, and at the end of a loader.

    `remainder` is the number of samples of the last batches of all ranks together, -1 for data of unknown length.
    """

    def __init__(self) -> None:
        self.sync_gradients = True
        self.end_of_dataloader = False
        self.remainder = -1


class AcceleratedOptimizer:
    """An optimizer whose `step` and `zero_grad` do nothing while gradients accumulate."""

    def __init__(self, optimizer: Any, state: GradientState) -> None:
        self.optimizer, self.gradient_state = optimizer, state
        self.step_was_skipped = False

    def step(self, closure: Any = None) -> Any:
        """Update the parameters."""
        return self.optimizer.step(closure) if self.gradient_state.sync_gradients else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        if self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(set_to_none)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.optimizer, name)


class AcceleratedScheduler:
    """A schedule made for one process: every update is as many steps as there are ranks.

    Without `turns` it steps once whenever it is asked to.
    """

    def __init__(self, scheduler: Any, state: GradientState, turns: int | None) -> None:
        self.scheduler, self.gradient_state, self._turns = scheduler, state, turns

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Go on; while gradients accumulate nothing happens."""
        if self._turns is None:
            self.scheduler.step(*args, **kwargs)
        elif self.gradient_state.sync_gradients:
            for _ in range(self._turns):
                # a schedule of known length stops at its end
                if self.scheduler._step_count <= getattr(self.scheduler, "total_steps", math.inf):
                    self.scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.scheduler, name)


class AcceleratedLoader(DataLoader):
    """The batches of one rank. Random orders come from the seed and the number of the pass, alike on all ranks."""

    def __init__(self, loader: DataLoader, state: GradientState, ranks: int = 1, rank: int = 0) -> None:
        self.__dict__.update(loader.__dict__)
        self.gradient_state = state
        self._passes = 0
        if self._iterable and ranks > 1:
            raise NotImplementedError("an IterableDataset on several ranks: its __iter__ must pick the samples")
        batches = loader.batch_sampler
        if isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement and not self._iterable:
            generator = loader.sampler.generator
            seed = generator.initial_seed() if generator is not None else None
            self.sampler = SeededRandomSampler(loader.dataset, seed)
            if type(batches) is BatchSampler:
                batches = BatchSampler(self.sampler, batches.batch_size, batches.drop_last)
        total = (self.batch_size or 1) * ranks
        self._remainder = -1
        if not self._iterable:
            self._remainder = len(loader.dataset) % total if not loader.drop_last else 0
        self.batch_sampler = batches if batches is None or ranks == 1 else BatchShard(batches, ranks, rank)

    def __iter__(self) -> Iterator[Any]:
        set_epoch(self, self._passes)
        state = self.gradient_state
        batches = super().__iter__()
        following = next(batches, _END)
        while following is not _END:
            batch, following = following, next(batches, _END)
            # said for every batch, because other loaders are gone through in between
            state.remainder, state.end_of_dataloader = self._remainder, following is _END
            yield batch
        self._passes += 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self._passes = epoch
        set_epoch(self, epoch)


_END: Any = object()
