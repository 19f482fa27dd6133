"""LongRoPE: a factor for every frequency, one list for short sequences and one for long ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from mindspore import Tensor, nn, ops

from mappings.errors import UserError
from ms_models.layers.rope_scaling import RopeScaling, full_length, original_length, positive_number, powers


class LongFrequencies(nn.Cell):
    """Frequencies of a sequence, from its length: one set for all its positions."""

    def __init__(self, short: np.ndarray, long: np.ndarray, original: float) -> None:
        super().__init__()
        self.short, self.long = Tensor(short), Tensor(long)
        self.original = original

    def construct(self, length: Tensor) -> Tensor:
        return ops.where(length > self.original, self.long, self.short)


@dataclass(frozen=True)
class LongRope(RopeScaling):
    """Pair i turns `theta ** -(2i / width) / factors[i]` per position (Ding et al. 2024).

    The long factors serve sequences longer than the original context, all positions of them.
    """

    kind: ClassVar[str] = "longrope"
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original: float
    """Sequence length before it was extended."""
    scale: float
    """What cosines and sines are multiplied by, for short and long sequences alike."""

    @classmethod
    def read(cls, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        original = original_length(fields, config)
        factor = fields.get("factor")
        stretch = full_length(config) / original if factor is None else positive_number("factor", factor)
        given = fields.get("attention_factor")
        scale = _attention_factor(stretch, original) if given is None else positive_number("attention_factor", given)
        return cls(_factors(fields, "short_factor"), _factors(fields, "long_factor"), original, scale)

    @property
    def attention_factor(self) -> float:
        return self.scale

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        return _divided(theta, width, "short_factor", self.short_factor)

    def by_length(self, theta: float, width: int) -> LongFrequencies:
        long = _divided(theta, width, "long_factor", self.long_factor)
        return LongFrequencies(self.frequencies(theta, width), long, self.original)


def _attention_factor(stretch: float, original: float) -> float:
    """`sqrt(1 + log(stretch) / log(original))`: keeps the entropy of attention over a longer context."""
    if stretch <= 1:
        return 1.0
    if original <= 1:
        raise UserError(
            f"config.json: original_max_position_embeddings of the rotary embedding must exceed 1, found {original!r}"
        )
    return math.sqrt(1 + math.log(stretch) / math.log(original))


def _factors(fields: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = fields.get(name)
    if not isinstance(values, list):
        raise UserError(f"config.json: {name} of the rotary embedding must be a list of numbers, found {values!r}")
    return tuple(positive_number(name, value) for value in values)


def _divided(theta: float, width: int, name: str, factors: tuple[float, ...]) -> np.ndarray:
    inverse = powers(theta, width)
    if len(factors) != len(inverse):
        raise UserError(
            f"config.json: {name} of the rotary embedding has {len(factors)} numbers, "
            f"{width} rotated dimensions need {len(inverse)}"
        )
    return np.float32(1) / (np.array(factors, np.float32) * inverse)
