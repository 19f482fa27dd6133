"""Schedules that go up and down: warm restarts, cycles, one cycle, with torch's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .scheduler import (
    LRScheduler,
    annealed,
    check_strategy,
    checked_optimizer,
    cycling_momentum,
    per_group,
    saved_function,
    set_momentum,
)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine over `T_0` steps, again over `T_0 * T_mult`, and so on (Loshchilov and Hutter, 2017)."""

    def __init__(self, optimizer: Any, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, float | int):
            raise ValueError(f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        share = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * share / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next step, or to a given one, which may be a fraction (epoch + batch / batches)."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        elif epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            cycles = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**cycles - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**cycles
        self.last_epoch = math.floor(epoch)
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = self._rates()


class CyclicLR(LRScheduler):
    """Between `base_lr` and `max_lr` in triangles, whose height may shrink (Smith, 2017)."""

    def __init__(
        self,
        optimizer: Any,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        base_lrs = per_group("base_lr", checked_optimizer(optimizer), base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                group["lr"] = rate
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if scale_fn is None:
            if mode not in ("triangular", "triangular2", "exp_range"):
                raise ValueError("mode is invalid and scale_fn is None")
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.mode, self.gamma, self.scale_mode, self._scale_fn_custom = mode, gamma, scale_mode, scale_fn
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
            self.use_beta1 = cycling_momentum(optimizer, last_epoch, self.max_momentums, self.base_momentums)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """Height of cycle `x` (counted from 1), or of step `x`, as a share of the full height."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[Any]:
        """Rate of each group; sets its momentum too."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        place = 1.0 + self.last_epoch / self.total_size - cycle
        rising = place <= self.step_ratio
        height = place / self.step_ratio if rising else (place - 1) / (self.step_ratio - 1)
        counted = cycle if self.scale_mode == "cycle" else self.last_epoch

        def part(least: Any, most: Any) -> Any:
            return (most - least) * height * self.scale_fn(counted)

        rates = [least + part(least, most) for least, most in zip(self.base_lrs, self.max_lrs, strict=True)]
        if self.cycle_momentum:
            bounds = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
            for group, least, most in bounds:
                set_momentum(group, most - part(least, most), self.use_beta1)
        return rates

    def state_dict(self) -> dict[str, Any]:
        """The state without a plain `scale_fn`; of a callable object, its attributes are kept."""
        custom = self._scale_fn_custom
        return {**super().state_dict(), "_scale_fn_custom": None if custom is None else saved_function(custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; `scale_fn` stays that of this schedule."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_scale_fn_custom"})
        if state_dict["_scale_fn_custom"] is not None:
            self._scale_fn_custom.__dict__.update(state_dict["_scale_fn_custom"])


class OneCycleLR(LRScheduler):
    """Up from `max_lr / div_factor` to `max_lr`, then down to `max_lr / div_factor / final_div_factor` (Smith, 2017).

    With `cycle_momentum`, the momentum (or the first of `betas`) goes the other way.
    """

    def __init__(
        self,
        optimizer: Any,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            _check_count("epochs", epochs)
            _check_count("steps_per_epoch", steps_per_epoch)
            total_steps = epochs * steps_per_epoch
        _check_count("total_steps", total_steps)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        check_strategy(anneal_strategy)
        self.total_steps, self._anneal_func_type, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        up, down = ("initial_lr", "max_lr", "max_momentum", "base_momentum"), ("base_momentum", "max_momentum")
        end = float(pct_start * total_steps) - 1
        if three_phase:
            self._schedule_phases = [
                _phase(end, *up),
                _phase(float(2 * pct_start * total_steps) - 2, "max_lr", "initial_lr", *down),
                _phase(total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"),
            ]
        else:
            self._schedule_phases = [_phase(end, *up), _phase(total_steps - 1, "max_lr", "min_lr", *down)]
        peaks = per_group("max_lr", checked_optimizer(optimizer), max_lr)
        if last_epoch == -1:
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["initial_lr"], group["max_lr"] = peak / div_factor, peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            most = per_group("max_momentum", optimizer, max_momentum)
            least = per_group("base_momentum", optimizer, base_momentum)
            self.use_beta1 = cycling_momentum(optimizer, last_epoch, most, least)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Rate of each group; sets its momentum too.

        Raises:
            ValueError: more steps than the schedule has.
        """
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        number = next((i for i, phase in enumerate(self._schedule_phases) if step <= phase["end_step"]), -1)
        phase = self._schedule_phases[number]
        before = 0.0 if phase is self._schedule_phases[0] else self._schedule_phases[number - 1]["end_step"]
        share = (step - before) / (phase["end_step"] - before)

        def between(group: dict[str, Any], what: str) -> Any:
            return annealed(self._anneal_func_type, group[phase[f"start_{what}"]], group[phase[f"end_{what}"]], share)

        rates = [between(group, "lr") for group in self.optimizer.param_groups]
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                set_momentum(group, between(group, "momentum"), self.use_beta1)
        return rates


def _check_count(name: str, value: Any) -> None:
    if value <= 0 or not isinstance(value, int):
        raise ValueError(f"Expected positive integer {name}, but got {value}")


def _phase(end: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> dict[str, Any]:
    return {
        "end_step": end,
        "start_lr": start_lr,
        "end_lr": end_lr,
        "start_momentum": start_momentum,
        "end_momentum": end_momentum,
    }
