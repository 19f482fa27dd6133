"""`Spikes`: losses and gradient norms of the last updates, and which step lies far above them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from ms_models.train.config import GuardConfig


class Spikes:
    """Medians over a window of updates. A median does not move for a few steps that went wrong, a mean does.

    What is left out is not entered, so that spike after spike is measured by the calm before them; if the level has
    changed for good, `guard.max_skips` ends the run.

    Attributes:
        losses: of the last updates, the latest last.
        norms: gradient norms of the same.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self.losses: deque[float] = deque(maxlen=config.spike_window)
        self.norms: deque[float] = deque(maxlen=config.spike_window)

    def reason(self, loss: float, norm: float) -> str | None:
        """Why a step is a spike, None where it is none or where nothing is to be done about spikes.

        Args:
            loss: of the step.
            norm: of its gradients, before clipping.
        """
        config = self.config
        if config.spike == "none" or len(self.losses) < config.spike_warmup:
            return None
        found = [
            f"{what} {value:.4g} is {value / usual:.1f} times the median {usual:.4g} of the last {len(seen)} updates"
            for what, value, limit, seen, usual in (
                ("loss", loss, config.spike_loss, self.losses, median(self.losses)),
                ("gradient norm", norm, config.spike_norm, self.norms, median(self.norms)),
            )
            if limit and math.isfinite(value) and value > limit * usual
        ]
        return "; ".join(found) or None

    def add(self, loss: float, norm: float) -> None:
        """An update was made."""
        self.losses.append(loss)
        self.norms.append(norm)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"losses": list(self.losses), "norms": list(self.norms)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint; a shorter window takes the latest values."""
        self.losses.clear()
        self.norms.clear()
        self.losses.extend(state["losses"])
        self.norms.extend(state["norms"])
