"""Llama 3.1's scaling: slow frequencies divided, fast ones kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ms_models.layers.rope_scaling import RopeScaling, original_length, plain_frequencies, positive_number


@dataclass(frozen=True)
class Llama3Rope(RopeScaling):
    """Frequencies whose wavelength exceeds the original context are divided by `factor`, short ones kept.

    Between `high_freq_factor` and `low_freq_factor` turns within the original context it interpolates.
    """

    kind: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: float
    """Sequence length before it was extended."""

    @classmethod
    def read(cls, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        factor, low, high = (
            positive_number(name, fields.get(name)) for name in ("factor", "low_freq_factor", "high_freq_factor")
        )
        return cls(factor, low, high, original_length(fields, config))

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        plain = plain_frequencies(theta, width)
        turns = np.float32(self.original) / (np.float32(2 * math.pi) / plain)
        smooth = (turns - np.float32(self.low_freq_factor)) / np.float32(self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, np.float32(0), np.float32(1))
        return (np.float32(1) - smooth) * plain / np.float32(self.factor) + smooth * plain
