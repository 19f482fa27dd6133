"""Section `guard`: what a run does about steps that went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ms_models.train.config.bounds import number

Policy = Literal["stop", "skip"]


@dataclass(frozen=True)
class GuardConfig:
    """Decided by all ranks together, before anything is updated."""

    non_finite: Policy = "stop"
    """What to do with a step whose loss or gradient norm is not finite: end the run, or leave the step out."""
    max_skips: int = number(3, least=1)
    """End the run after this many steps left out in a row."""
