"""`Guard`: what a run does about a step that went wrong; the same decision on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ms_models.train.config import GuardConfig
from ms_models.train.errors import RunError
from ms_models.train.step import StepResult


class Guard:
    """Counts steps that were left out, and ends the run when its policy says so.

    Attributes:
        skips: steps left out in a row up to now; a checkpoint keeps it.
    """

    def __init__(self, config: GuardConfig, skips: int = 0) -> None:
        self.config, self.skips = config, skips

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"skips": self.skips}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` gave."""
        self.skips = state["skips"]

    def judge(self, step: int, result: StepResult, batch: str) -> str | None:
        """Looks at a step that was taken or left out.

        Args:
            step: its number.
            result: what became of it.
            batch: where its batch is, for the message.

        Returns:
            A line for the person who watches where the step was left out.

        Raises:
            RunError: the run is to end.
        """
        if result.is_finite:
            self.skips = 0
            return None
        self.skips += 1
        what = f"step {step}: loss {result.loss}, gradient norm {result.grad_norm}; nothing was updated"
        if self.config.non_finite == "stop" or self.skips >= self.config.max_skips:
            raise RunError(
                f"{what}. The batch is {batch}; lower optimizer.lr, look at the data, or set guard.non_finite to skip"
            )
        return f"{what}, step skipped ({self.skips} in a row, {self.config.max_skips} end the run)"
