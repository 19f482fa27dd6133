"""Sections `optimizer` and `schedule`: AdamW with PyTorch's meaning of every number, and its learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with PyTorch's meaning of every number."""

    lr: float = number(3e-4, least=0)
    """Peak learning rate."""
    betas: tuple[float, float] = number((0.9, 0.95), least=0, below=1)
    eps: float = number(1e-8, above=0)
    weight_decay: float = number(0.1, least=0)
    """Applies to matrices; norms and biases never decay."""
    clip_norm: float = number(1.0, least=0)
    """Largest global gradient norm; 0 leaves gradients as they are."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over the steps."""

    kind: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    warmup_steps: int = number(0, least=0)
    """Steps of linear rise from 0."""
    min_lr_ratio: float = number(0.1, least=0, most=1)
    """Last learning rate over the peak; `constant` ignores it."""
    decay_fraction: float = number(0.1, least=0, most=1)
    """`wsd`: share of the steps, at the end, in which the rate falls."""
