"""YaRN (Peng et al. 2023): rotary frequencies for a context longer than the one a model was trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappings.errors import UserError


@dataclass(frozen=True)
class Yarn:
    """How frequencies and attention are adapted to a context `factor` times as long."""

    factor: float
    original_max_position_embeddings: float
    """Context the model was trained with."""
    beta_fast: float = 32.0
    """Pairs that turn more often than this over the original context keep their frequency."""
    beta_slow: float = 1.0
    """Pairs that turn less often than this are interpolated: their frequency is divided by `factor`."""
    truncate: bool = True
    """Whether the bounds of the pairs between these two are rounded to whole pairs."""
    attention_factor: float = 1.0
    """What cosine and sine are multiplied by."""
    mscale_all_dim: float = 0.0
    """DeepSeek's scale of whole scores, see `score_scale`; 0 for none."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], max_position_embeddings: float) -> Yarn:
        """Reads the rotary settings of a `config.json` (`rope_parameters`, or `rope_scaling` in transformers 4).

        Fields that are null or 0 mean the default, as in transformers.

        Args:
            fields: the rotary settings.
            max_position_embeddings: the original context where the settings do not name it.

        Raises:
            UserError: a number is missing or odd.
        """
        factor = _number(fields, "factor", None)
        if factor < 1:
            raise UserError(f"config.json: factor of the YaRN rotary embedding must be at least 1, found {factor!r}")
        mscale, all_dim = (_number(fields, name, 0.0) for name in ("mscale", "mscale_all_dim"))
        usual = magnitude(factor, mscale) / magnitude(factor, all_dim) if mscale and all_dim else magnitude(factor)
        truncate = fields.get("truncate", True)
        if not isinstance(truncate, bool):
            raise UserError(f"config.json: truncate of the YaRN rotary embedding must be a boolean, found {truncate!r}")
        return cls(
            factor=factor,
            original_max_position_embeddings=_number(
                fields, "original_max_position_embeddings", max_position_embeddings
            ),
            beta_fast=_number(fields, "beta_fast", 32.0),
            beta_slow=_number(fields, "beta_slow", 1.0),
            truncate=truncate,
            attention_factor=_number(fields, "attention_factor", usual),
            mscale_all_dim=all_dim,
        )

    @property
    def score_scale(self) -> float:
        """What DeepSeek's models multiply attention scores by beside `1 / sqrt(width)`."""
        return magnitude(self.factor, self.mscale_all_dim) ** 2


def magnitude(factor: float, weight: float = 1.0) -> float:
    """`0.1 * weight * ln(factor) + 1`: how much sharper attention gets in a context `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0


def yarn_frequencies(yarn: Yarn, theta: float, width: int) -> np.ndarray:
    """Angle per position of each pair of dimensions, `[width / 2]` fp32.

    Between the pairs that keep `theta ** -(2i / width)` and those that are interpolated, a linear ramp over the pairs.
    The power is taken in fp64 and rounded, as in `rotary.inverse_frequencies`.

    Args:
        yarn: the adaptation.
        theta: base of the geometric series of frequencies.
        width: number of rotated dimensions of a head.
    """
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    wavelength = np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    kept, interpolated = 1 / wavelength, 1 / (np.float32(yarn.factor) * wavelength)
    low, high = (_pair(turns, yarn, theta, width) for turns in (yarn.beta_fast, yarn.beta_slow))
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    return (interpolated * ramp + kept * (1 - ramp)).astype(np.float32)


def _pair(turns: float, yarn: Yarn, theta: float, width: int) -> float:
    """The (fractional) pair of dimensions that turns so often over the original context."""
    return width * math.log(yarn.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _number(fields: Mapping[str, Any], name: str, default: float | None) -> float:
    value = fields.get(name) or default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UserError(f"config.json: {name} of the YaRN rotary embedding must be a positive number, found {value!r}")
    return value
