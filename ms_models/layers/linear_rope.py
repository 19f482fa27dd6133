"""Position interpolation: every frequency divided by one factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ms_models.layers.rope_scaling import RopeScaling, plain_frequencies, positive_number


@dataclass(frozen=True)
class LinearRope(RopeScaling):
    """Positions are squeezed `factor` times (Chen et al. 2023)."""

    kind: ClassVar[str] = "linear"
    factor: float

    @classmethod
    def read(cls, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        return cls(positive_number("factor", fields.get("factor")))

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        return plain_frequencies(theta, width) / np.float32(self.factor)
