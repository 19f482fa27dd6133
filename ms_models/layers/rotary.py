"""Rotary position embedding: frequencies, as `config.json` describes them, and the rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mappings.errors import UserError

LLAMA3_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary settings of a model."""

    theta: float
    """Base of the geometric series of frequencies."""
    kind: str = "default"
    """`default` or `llama3`."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Reads transformers 5 (`rope_parameters`) and 4 (`rope_theta`, `rope_scaling`) spellings.

        Raises:
            UserError: a rotary type other than `default` and `llama3`, or a missing or odd number.
        """
        fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(fields, Mapping):
            raise UserError(f"config.json: rope_parameters must be an object, found {fields!r}")
        kind = fields.get("rope_type", fields.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise UserError(f"config.json: rope type {kind!r} is not supported (known: default, llama3)")
        partial = fields.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if partial != 1.0:
            raise UserError(f"config.json: partial_rotary_factor {partial!r} is not supported, only 1.0")
        theta = _number("rope_theta", fields.get("rope_theta", config.get("rope_theta", 10000.0)))
        if kind == "default":
            return cls(theta)
        return cls(theta, kind, **{name: _number(name, fields.get(name)) for name in LLAMA3_FIELDS})  # type: ignore[arg-type]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"config.json: {name} of the rotary embedding must be a positive number, found {value!r}")
    return value


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Angle per position of each pair of dimensions, `[head_dim / 2]` fp32.

    `theta ** -(2i / head_dim)` (Su et al. 2021). The power is taken in fp64 and rounded, which differs from PyTorch's
    fp32 power in at most the last bit. `llama3` divides frequencies whose wavelength exceeds the original context by
    `factor`, keeps short ones, and interpolates between (Llama 3.1).
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1) / np.power(np.float64(rope.theta), exponent.astype(np.float64)).astype(np.float32)
    if rope.kind == "default":
        return frequencies
    turns = np.float32(rope.original_max_position_embeddings) / (np.float32(2 * math.pi) / frequencies)
    smooth = (turns - np.float32(rope.low_freq_factor)) / np.float32(rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, np.float32(0), np.float32(1))
    return (np.float32(1) - smooth) * frequencies / np.float32(rope.factor) + smooth * frequencies


class Rotary(nn.Cell):
    """Cosine and sine of every position's angles."""

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        super().__init__()
        self.frequencies = Tensor(inverse_frequencies(rope, head_dim))

    def construct(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Two tables `[B, S, 1, head_dim / 2]` fp32 for positions `[B, S]` (B may be 1)."""
        angles = position_ids.astype(ms.float32).expand_dims(-1) * self.frequencies
        angles = angles.expand_dims(2)
        return ops.cos(angles), ops.sin(angles)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pair (i, i + head_dim / 2) of `x` `[B, S, heads, head_dim]` by its angle: the half-split convention."""
    first, second = ops.split(x, x.shape[-1] // 2, -1)
    return ops.concat((first * cos - second * sin, second * cos + first * sin), -1)
