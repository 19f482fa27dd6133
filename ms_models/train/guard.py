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

    def judge(self, step: int, result: StepResult, batch: str, evidence: str = "") -> str | None:
        """Looks at a step that was taken or left out.

        Args:
            step: its number.
            result: what became of it.
            batch: where its batch is, for the message.
            evidence: what was found out about it and where that is kept, for the message.

        Returns:
            A line for the person who watches where the step was left out.

        Raises:
            RunError: the run is to end.
        """
        if result.is_updated:
            self.skips = 0
            return None
        if result.outcome == "overflow":
            # What a loss scale is there for: neither a failure, nor the end of a row of failures.
            return f"step {step}: fp16 gradients overflowed at loss scale {result.loss_scale:g}; it is lowered"
        self.skips += 1
        is_spike = result.outcome == "spike"
        why = result.reason or f"loss {result.loss}, gradient norm {result.grad_norm}"
        what = f"step {step}: {why}; nothing was updated"
        what += f". {evidence}" if evidence else ""
        policy = self.config.spike if is_spike else self.config.non_finite
        if policy == "stop" or self.skips >= self.config.max_skips:
            field = "guard.spike" if is_spike else "guard.non_finite"
            raise RunError(
                f"{what}. The batch is {batch}; lower optimizer.lr, look at the data, or set {field} to skip"
            )
        return f"{what}, step skipped ({self.skips} in a row, {self.config.max_skips} end the run)"
