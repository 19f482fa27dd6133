"""`SWALR`: from any rate to the rate of weight averaging, with torch's arithmetic."""

from __future__ import annotations

import math
from typing import Any

from .scheduler import LRScheduler, check_strategy, per_group


class SWALR(LRScheduler):
    """The rate in force goes to `swa_lr` over `anneal_epochs` steps and stays there (Izmailov et al., 2018)."""

    def __init__(
        self,
        optimizer: Any,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for rate, group in zip(per_group("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        check_strategy(anneal_strategy)
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        step = self._step_count - 1
        step = max(1, step) if self.anneal_epochs == 0 else step
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            target = group["swa_lr"]
            # the rate at the start of the way, of which the one in force is a mixture with the target
            start = target if before == 1 else (group["lr"] - before * target) / (1 - before)
            rates.append(target * now + start * (1 - now))
        return rates

    def _share(self, step: int) -> float:
        share = max(0, min(1, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * share)) / 2 if self._anneal_strategy == "cos" else share
