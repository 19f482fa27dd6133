"""YaRN (Peng et al. 2023): rotary frequencies for a context longer than the one a model was trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from mappings.errors import UserError
from ms_models.layers.rope_scaling import RopeScaling, original_length, positive_number, powers


@dataclass(frozen=True)
class YarnRope(RopeScaling):
    """How frequencies and attention are adapted to a context `factor` times as long."""

    kind: ClassVar[str] = "yarn"
    factor: float
    original: float
    """Context the model was trained with."""
    beta_fast: float
    """Pairs that turn more often than this over the original context keep their frequency."""
    beta_slow: float
    """Pairs that turn less often than this are interpolated: their frequency is divided by `factor`."""
    truncate: bool
    """Whether the bounds of the pairs between these two are rounded to whole pairs."""
    scale: float
    """What cosines and sines are multiplied by."""
    mscale_all_dim: float
    """DeepSeek's scale of whole scores, see `score_scale`; 0 for none."""

    @classmethod
    def read(cls, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        factor = positive_number("factor", fields.get("factor"))
        if factor < 1:
            raise UserError(f"config.json: factor of the YaRN rotary embedding must be at least 1, found {factor!r}")
        mscale, all_dim = _or_default(fields, "mscale", 0.0), _or_default(fields, "mscale_all_dim", 0.0)
        usual = magnitude(factor, mscale) / magnitude(factor, all_dim) if mscale and all_dim else magnitude(factor)
        given = fields.get("attention_factor")
        truncate = fields.get("truncate", True)
        if not isinstance(truncate, bool):
            raise UserError(f"config.json: truncate of the YaRN rotary embedding must be a boolean, found {truncate!r}")
        return cls(
            factor=factor,
            original=original_length(fields, config),
            beta_fast=_or_default(fields, "beta_fast", 32.0),
            beta_slow=_or_default(fields, "beta_slow", 1.0),
            truncate=truncate,
            scale=usual if given is None else positive_number("attention_factor", given),
            mscale_all_dim=all_dim,
        )

    @property
    def attention_factor(self) -> float:
        return self.scale

    @property
    def score_scale(self) -> float:
        """What DeepSeek's models multiply attention scores by beside `1 / sqrt(width)`."""
        return magnitude(self.factor, self.mscale_all_dim) ** 2

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        """Between pairs that keep their frequency and those that are interpolated, a linear ramp over the pairs."""
        wavelength = powers(theta, width)
        kept, interpolated = 1 / wavelength, 1 / (np.float32(self.factor) * wavelength)
        low, high = (self._pair(turns, theta, width) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        if low == high:
            high += 0.001  # a step instead of a division by zero
        ramp = np.clip((np.arange(width // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
        return (interpolated * ramp + kept * (1 - ramp)).astype(np.float32)

    def _pair(self, turns: float, theta: float, width: int) -> float:
        """The (fractional) pair of dimensions that turns so often over the original context."""
        return width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def magnitude(factor: float, weight: float = 1.0) -> float:
    """`0.1 * weight * ln(factor) + 1`: how much sharper attention gets in a context `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0


def _or_default(fields: Mapping[str, Any], name: str, default: float) -> float:
    """A positive number; null and 0 mean the default, as in transformers."""
    value = fields.get(name)
    return default if value is None or value == 0 else positive_number(name, value)
