"""Schedules made of schedules: one after the other, or all at once, with torch's arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from .scheduler import LRScheduler
from .schedulers_plateau import ReduceLROnPlateau


class _Combined(LRScheduler):
    _schedulers: Sequence[Any]

    def _check(self, optimizer: Any, schedulers: Sequence[Any]) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} expects at least one scheduler, but got no scheduler")
        for number, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {number} should have `optimizer` as its attribute")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(f"{name} cannot step ReduceLROnPlateau, which needs a metric (at index {number})")
            if scheduler.optimizer is not optimizer:
                raise ValueError(f"{name} expects one optimizer; that of the scheduler at index {number} is another")

    def state_dict(self) -> dict[str, Any]:
        """The state, with those of the schedules inside."""
        return {**super().state_dict(), "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state, also in the schedules inside."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Combined):
    """One schedule after the other; each starts at its own step 0 when its milestone is reached."""

    def __init__(
        self, optimizer: Any, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        self._check(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"{len(schedulers)} schedulers need {len(schedulers) - 1} milestones, not {len(milestones)}"
            )
        self._schedulers, self._milestones = schedulers, milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Creating the schedules has set rates and counted a step: take both back, then start the first one alone.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        _take_back(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step.

        Raises:
            TypeError: an epoch is given.
        """
        if epoch is not None:
            raise TypeError("SequentialLR.step takes no epoch")
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _take_back(scheduler: Any) -> None:
    if hasattr(scheduler, "_schedulers"):
        for inner in scheduler._schedulers:
            _take_back(inner)
    elif hasattr(scheduler, "last_epoch"):
        scheduler.last_epoch -= 1


class ChainedScheduler(_Combined):
    """All schedules at every step, each from the rate that the one before it left."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Any = None) -> None:
        self.optimizer = optimizer or (schedulers[0].optimizer if schedulers else None)
        self._check(self.optimizer, schedulers)
        self._schedulers = schedulers
        self._last_lr = self._rates()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step.

        Raises:
            TypeError: an epoch is given.
        """
        if epoch is not None:
            raise TypeError("ChainedScheduler.step takes no epoch")
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()
