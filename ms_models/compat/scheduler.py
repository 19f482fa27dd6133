"""`LRScheduler`: what all learning-rate schedules share: counting steps, setting rates, dictionaries."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import Any


class LRScheduler:
    """Base class with torch's interface; a subclass defines `get_lr`, the next rate of each group.

    As in torch, most schedules compute the next rate from the one in force (`group["lr"]`), so that a rate written
    between two steps, or by another schedule, stays in effect. Creating a schedule sets the rates of step 0; call
    `step()` after each update. torch's warnings (a step before the optimizer's, `step(epoch)`) are not given.
    """

    _is_initial = False
    _get_lr_called_within_step = False

    def __init__(self, optimizer: Any, last_epoch: int = -1) -> None:
        self.optimizer = checked_optimizer(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param_groups[{number}] has no 'initial_lr', which last_epoch={last_epoch} needs: load the state"
                    " of the optimizer first"
                )
        self.base_lrs: list[Any] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        self.step()
        self._is_initial = False

    def get_lr(self) -> list[Any]:
        """Rate of each group at `last_epoch`; called by `step` only."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr")

    def get_last_lr(self) -> list[Any]:
        """Rates that the last step set."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step, or to a given one (by the closed form of the schedule, where there is one)."""
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self._get_lr_called_within_step = True
        if epoch is None:
            self.last_epoch += 1
            rates = self.get_lr()
        else:
            self.last_epoch = epoch
            rates = getattr(self, "_get_closed_form_lr", self.get_lr)()
        self._get_lr_called_within_step = False
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = self._rates()

    def _rates(self) -> list[Any]:
        """Rates in force."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[Any]:
        """Rates in force times a factor."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state, also one of torch; the rates in force come from the state of the optimizer."""
        self.__dict__.update(state_dict)


def checked_optimizer(optimizer: Any) -> Any:
    """The optimizer itself.

    Raises:
        TypeError: it has no parameter groups.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


def per_group(name: str, optimizer: Any, value: Any) -> list[Any]:
    """One value for all groups as a list, or a list of one value per group.

    Raises:
        ValueError: a list of another length.
    """
    groups = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * groups
    if len(value) != groups:
        raise ValueError(f"{name} has {len(value)} values for {groups} param_groups")
    return list(value)


def saved_function(function: Any) -> dict[str, Any] | None:
    """What a state dictionary keeps of a function: the attributes of a callable object, None for a plain function."""
    return None if isinstance(function, types.FunctionType) else dict(function.__dict__)


def annealed(strategy: str, start: Any, end: Any, share: float) -> Any:
    """The value on the way from `start` to `end`, along half a cosine ("cos") or in a straight line."""
    if strategy == "cos":
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
    return (end - start) * share + start


def check_strategy(strategy: str) -> None:
    """Refuse anything but "cos" and "linear".

    Raises:
        ValueError: names the strategy.
    """
    if strategy not in ("cos", "linear"):
        raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', not {strategy!r}")


def cycling_momentum(optimizer: Any, last_epoch: int, largest: Sequence[Any], smallest: Sequence[Any]) -> bool:
    """Start every group at its largest momentum; whether that is the first of `betas`.

    Raises:
        ValueError: the optimizer has neither `momentum` nor `betas`.
    """
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
    first_beta = "betas" in optimizer.defaults
    if last_epoch == -1:
        for group, most, least in zip(optimizer.param_groups, largest, smallest, strict=True):
            set_momentum(group, most, first_beta)
            group["max_momentum"], group["base_momentum"] = most, least
    return first_beta


def set_momentum(group: dict[str, Any], momentum: Any, first_beta: bool) -> None:
    """Write the momentum of a group."""
    if first_beta:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum
