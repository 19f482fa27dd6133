"""Section `guard`: what a run does about steps that went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mappings.errors import UserError
from ms_models.train.config.bounds import number

Policy = Literal["stop", "skip"]


@dataclass(frozen=True)
class GuardConfig:
    """Decided by all ranks together, before anything is updated."""

    non_finite: Policy = "stop"
    """What to do with a step whose loss or gradient norm is not finite: end the run, or leave the step out. With fp16,
    gradients that overflow are first answered by a smaller `precision.loss_scale`."""
    max_skips: int = number(3, least=1)
    """End the run after this many steps left out in a row."""
    spike: Literal["none", "skip", "stop"] = "none"
    """What to do with a step whose loss or gradient norm lies far above those of the steps before."""
    spike_loss: float = number(2.0, least=0)
    """How many times the median loss is far; 0 does not look at the loss."""
    spike_norm: float = number(10.0, least=0)
    """How many times the median gradient norm (before clipping) is far; 0 does not look at the norm."""
    spike_window: int = number(100, least=2)
    """Updates whose median is meant, the last ones; steps left out do not count."""
    spike_warmup: int = number(20, least=1)
    """Updates that must have been made before a step can be a spike; at most `spike_window`."""
    keep_batches: int = number(4, least=0)
    """Bad steps of a run whose batch and attribution are kept in `<output>/bad_steps`; 0 keeps none."""

    def __post_init__(self) -> None:
        for name in ("spike_loss", "spike_norm"):
            if 0 < getattr(self, name) <= 1:
                raise UserError(f"config: 'guard.{name}' must be above 1, or 0, found {getattr(self, name):g}")
        if self.spike_warmup > self.spike_window:
            raise UserError(
                f"config: 'guard.spike_warmup' is {self.spike_warmup}, above 'guard.spike_window' of "
                f"{self.spike_window}; lower it"
            )
        if self.spike != "none" and not self.spike_loss and not self.spike_norm:
            raise UserError("config: 'guard.spike' is set, but 'guard.spike_loss' and 'guard.spike_norm' are both 0")
