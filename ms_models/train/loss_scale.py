"""`LossScale`: the factor that keeps small fp16 gradients from vanishing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ms_models.train.config import PrecisionConfig


class LossScale:
    """Grows after a while without overflow, shrinks after one: Micikevicius et al. (arXiv 1710.03740), section 3.2.

    With the same numbers its course is that of `torch.amp.GradScaler`, down to the floor, which torch does not have.
    Other formats than fp16 have the range of fp32: the factor is 1 and stays.

    Attributes:
        factor: what the loss is multiplied by.
        good: steps in a row without overflow since the factor last changed.
    """

    def __init__(self, config: PrecisionConfig) -> None:
        self.config = config
        self.is_dynamic = config.compute == "fp16"
        self.factor = config.loss_scale if self.is_dynamic else 1.0
        self.good = 0

    @property
    def can_shrink(self) -> bool:
        """Whether an overflow is answered by a smaller factor."""
        return self.is_dynamic and self.factor > self.config.loss_scale_floor

    def update(self, *, overflowed: bool) -> None:
        """A step is over.

        Args:
            overflowed: whether its gradients were not finite, though its loss was.
        """
        config = self.config
        if not self.is_dynamic:
            return
        if overflowed:
            self.factor = max(self.factor * config.loss_scale_backoff, config.loss_scale_floor)
            self.good = 0
            return
        self.good += 1
        if self.good == config.loss_scale_window:
            self.factor *= config.loss_scale_growth
            self.good = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"factor": self.factor, "good": self.good}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint; from one of a run in another format than fp16, with the configured factor."""
        if self.is_dynamic and state["factor"] != 1.0:
            self.factor, self.good = float(state["factor"]), int(state["good"])
