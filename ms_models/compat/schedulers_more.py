"""More schedules: polynomial, warm restarts, one cycle."""

from __future__ import annotations

import math
from typing import Any

from .schedulers import LRScheduler


class PolynomialLR(LRScheduler):
    """`(1 - step / total_iters) ** power`, and 0 afterwards."""

    def __init__(self, optimizer: Any, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * share**self.power for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine over `T_0` steps, again over `T_0 * T_mult`, and so on (Loshchilov and Hutter, 2017)."""

    def __init__(self, optimizer: Any, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 <= 0 or T_mult < 1:
            raise ValueError(f"expected positive T_0 and T_mult >= 1, but got {T_0} and {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step, length = self.last_epoch, self.T_0
        while step >= length:
            step, length = step - length, length * self.T_mult
        share = (1 + math.cos(math.pi * step / length)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """Up from `max_lr / div_factor` to `max_lr`, then down to `max_lr / div_factor / final_div_factor` (Smith, 2017).

    The momentum of the optimizer stays as it is.
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
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("give total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be cos or linear, not {anneal_strategy!r}")
        self.total_steps, self._linear = total_steps, anneal_strategy == "linear"
        up = pct_start * total_steps - 1
        if three_phase:
            self._ends = [up, 2 * pct_start * total_steps - 2, total_steps - 1]
        else:
            self._ends = [up, total_steps - 1]
        peaks = list(max_lr) if isinstance(max_lr, list | tuple) else [max_lr] * len(optimizer.param_groups)
        self._levels: list[list[float]] = []
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            start = peak / div_factor
            group["initial_lr"] = start
            middle = [peak, start] if three_phase else [peak]
            self._levels.append([start, *middle, start / final_div_factor])
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"step {step} of a schedule of {self.total_steps} steps")
        phase = next((i for i, end in enumerate(self._ends) if step <= end), len(self._ends) - 1)
        begin = 0 if phase == 0 else self._ends[phase - 1]
        share = (step - begin) / (self._ends[phase] - begin)
        return [self._between(levels[phase], levels[phase + 1], share) for levels in self._levels]

    def _between(self, start: float, end: float, share: float) -> float:
        return (
            start + (end - start) * share if self._linear else end + (start - end) / 2 * (1 + math.cos(math.pi * share))
        )
