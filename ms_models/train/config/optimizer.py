"""Sections `optimizer` and `schedule`: AdamW with PyTorch's meaning of every number, and its learning rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mappings.errors import UserError
from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class GroupConfig:
    """Parameters that are treated otherwise than the rest."""

    match: str
    """Regular expression that is found in their names, e.g. `^lm_head` or `bias$`."""
    lr_factor: float = number(1.0, least=0)
    """What the learning rate is multiplied by; 0 keeps them as they are."""
    weight_decay: float | None = number(None, least=0)
    """In place of `optimizer.weight_decay`; None leaves what they have without this group."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with PyTorch's meaning of every number."""

    lr: float = number(3e-4, least=0)
    """Peak learning rate."""
    betas: tuple[float, float] = number((0.9, 0.95), least=0, below=1)
    """Decay rates of the running means of gradients and of their squares, per update."""
    eps: float = number(1e-8, above=0)
    """Added to the root of the second mean."""
    weight_decay: float = number(0.1, least=0)
    """Decoupled; per update, times the learning rate."""
    no_decay: tuple[str, ...] | None = None
    """Regular expressions of parameters that do not decay, found in their names; one that matches none is an error.
    None: norms and biases, which is what has fewer than two dimensions. An empty list: everything decays."""
    groups: tuple[GroupConfig, ...] = ()
    """Parameters with another learning rate or decay; the first group that matches a name counts."""
    clip_norm: float = number(1.0, least=0)
    """Largest global gradient norm; 0 leaves gradients as they are."""

    def __post_init__(self) -> None:
        patterns = {f"no_decay[{n}]": pattern for n, pattern in enumerate(self.no_decay or ())}
        patterns |= {f"groups[{n}].match": group.match for n, group in enumerate(self.groups)}
        for field, pattern in patterns.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(
                    f"config: 'optimizer.{field}' is no regular expression: {pattern!r}: {error}"
                ) from error


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over the steps."""

    kind: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """Shape of the fall behind the warmup, see `ms_models/train/schedule.py`."""
    warmup_steps: int = number(0, least=0)
    """Steps of linear rise from 0."""
    min_lr_ratio: float = number(0.1, least=0, most=1)
    """Last learning rate over the peak; `constant` ignores it."""
    decay_fraction: float = number(0.1, least=0, most=1)
    """`wsd`: share of the steps, at the end, in which the rate falls."""
