"""Section `model`: what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mappings.errors import UserError
from ms_models.train.config.adapter import AdapterConfig


@dataclass(frozen=True)
class ModelConfig:
    """The model to start from: a Hugging Face directory of a known family, or a class of converted code."""

    path: str | None = None
    """Hugging Face directory, or a sharded directory whose layout is the run's."""
    task: Literal["causal", "masked"] | None = None
    """What the model predicts: the next token, or hidden tokens. None takes what the family is for."""
    adapter: AdapterConfig | None = None
    """A model that the code converter produced; in place of `path`."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.adapter is None):
            raise UserError("config: give either 'model.path' (a model directory) or 'model.adapter' (converted code)")
        if self.adapter is not None and self.task is not None:
            raise UserError("config: 'model.task' belongs to 'model.path'; a class of converted code has its own loss")
