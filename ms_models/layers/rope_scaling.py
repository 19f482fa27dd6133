"""`RopeScaling`: what the kinds of rotary embedding have in common, and the plain kind itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from mindspore import nn

from mappings.errors import UserError


@dataclass(frozen=True)
class RopeScaling:
    """Frequencies as they are; the other kinds derive from this one and change them."""

    kind: ClassVar[str] = "default"

    @classmethod
    def read(cls, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        """Settings of this kind.

        Args:
            fields: `rope_parameters` (transformers 5) or `rope_scaling` (4).
            config: the `config.json` around it.

        Raises:
            UserError: a number is missing or odd.
        """
        return cls()

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0

    def frequencies(self, theta: float, width: int) -> np.ndarray:
        """Angle per position of each pair, `[ceil(width / 2)]` fp32.

        Args:
            theta: base of the geometric series.
            width: how many dimensions of a head are rotated.
        """
        return plain_frequencies(theta, width)

    def by_length(self, theta: float, width: int) -> nn.Cell | None:
        """Where frequencies depend on the longest sequence: a cell that makes them from its length, a scalar tensor."""
        return None


def plain_frequencies(theta: float, width: int) -> np.ndarray:
    """`theta ** -(2i / width)` (Su et al. 2021), `[ceil(width / 2)]` fp32.

    The power is taken in fp64 and rounded, which differs from PyTorch's fp32 power in at most the last bit.
    """
    return np.float32(1) / powers(theta, width)


def powers(theta: float, width: int) -> np.ndarray:
    """`theta ** (2i / width)`: the inverse frequencies, `[ceil(width / 2)]` fp32."""
    return np.power(np.float64(theta), exponents(width).astype(np.float64)).astype(np.float32)


def exponents(width: int) -> np.ndarray:
    """`2i / width`, `[ceil(width / 2)]` fp32."""
    return np.arange(0, width, 2, dtype=np.float32) / np.float32(width)


def positive_number(name: str, value: Any) -> float:
    """A positive finite number of the rotary settings, or a UserError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"config.json: {name} of the rotary embedding must be a positive number, found {value!r}")
    return value


def original_length(fields: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Sequence length before it was extended.

    As in transformers, a field beside the rotary settings wins over one within them; without either, nothing was
    extended.
    """
    name = "original_max_position_embeddings"
    value = config.get(name, fields.get(name))
    return full_length(config) if value is None else positive_number(name, value)


def full_length(config: Mapping[str, Any]) -> float:
    """`max_position_embeddings`; 2048, transformers' commonest default, where `config.json` leaves it out."""
    return positive_number("max_position_embeddings", config.get("max_position_embeddings", 2048))
