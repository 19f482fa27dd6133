"""Section `precision`: number formats of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mappings.errors import UserError
from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class PrecisionConfig:
    """Weights, gradients that are added up and optimizer states are fp32 in any case, in checkpoints too."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Format of matrix products and of activations between layers; norms, softmax, routers and loss are fp32. bf16 is
    what to pretrain in where the device has it (the CPU does not)."""
    loss_scale: float = number(65536.0, least=1)
    """`fp16`: first factor of the loss, which keeps small gradients from vanishing."""
    loss_scale_window: int = number(2000, least=1)
    """`fp16`: steps in a row without overflow after which the factor grows."""
    loss_scale_growth: float = number(2.0, above=1)
    """`fp16`: what the factor is then multiplied by."""
    loss_scale_backoff: float = number(0.5, above=0, below=1)
    """`fp16`: what the factor is multiplied by after an overflow, whose step is left out."""
    loss_scale_floor: float = number(1.0, above=0)
    """`fp16`: smallest factor; an overflow there is a step that is not finite, see `guard.non_finite`."""

    def __post_init__(self) -> None:
        if self.loss_scale < self.loss_scale_floor:
            raise UserError(
                f"config: 'precision.loss_scale' is {self.loss_scale:g}, below 'precision.loss_scale_floor' of "
                f"{self.loss_scale_floor:g}; raise the first or lower the second"
            )
