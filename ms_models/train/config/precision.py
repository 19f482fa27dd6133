"""Section `precision`: number formats of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class PrecisionConfig:
    """Weights, gradients that are added up and optimizer states are fp32 in any case."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Format of matrix products and of activations between layers; norms, softmax and loss are fp32."""
    loss_scale: float = number(65536.0, least=1)
    """`fp16`: first factor of the loss."""
    loss_scale_window: int = number(2000, least=1)
    """`fp16`: finite steps after which the factor doubles; a step that is not finite halves it."""
