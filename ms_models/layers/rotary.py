"""Rotary position embedding: frequencies, as `config.json` describes them, and the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mappings.errors import UserError
from ms_models.layers.dynamic_rope import DynamicRope
from ms_models.layers.linear_rope import LinearRope
from ms_models.layers.llama3_rope import Llama3Rope
from ms_models.layers.long_rope import LongRope
from ms_models.layers.rope_scaling import RopeScaling, positive_number
from ms_models.layers.yarn import YarnRope

KINDS: dict[str, type[RopeScaling]] = {
    scaling.kind: scaling for scaling in (RopeScaling, LinearRope, DynamicRope, YarnRope, LongRope, Llama3Rope)
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary settings of a model, or of one type of its layers."""

    theta: float
    """Base of the geometric series of frequencies."""
    scaling: RopeScaling = field(default_factory=RopeScaling)
    """What is done to the frequencies."""
    partial_rotary_factor: float = 1.0
    """Which part of a head is rotated: its first dimensions."""

    @property
    def kind(self) -> str:
        """`rope_type` of `config.json`."""
        return self.scaling.kind

    @classmethod
    def from_json(cls, config: Mapping[str, Any], *, partial: bool = False) -> RopeConfig:
        """Reads transformers 5 (`rope_parameters`) and 4 (`rope_theta`, `rope_scaling`) spellings.

        Args:
            config: `config.json`.
            partial: whether the family can rotate a part of a head; otherwise `partial_rotary_factor` is refused.

        Raises:
            UserError: a rotary type that is not known, settings by layer type, or a missing or odd number.
        """
        fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(fields, Mapping):
            raise UserError(f"config.json: rope_parameters must be an object, found {fields!r}")
        if nested := sorted(name for name, value in fields.items() if isinstance(value, Mapping)):
            raise UserError(f"config.json: rope_parameters by layer type ({', '.join(nested)}) are not supported here")
        kind = fields.get("rope_type", fields.get("type", "default"))
        if (scaling := KINDS.get(kind)) is None:
            raise UserError(f"config.json: rope type {kind!r} is not supported (known: {', '.join(KINDS)})")
        part = fields.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if not partial and part != 1.0:
            raise UserError(f"config.json: partial_rotary_factor {part!r} is not supported, only 1.0")
        if positive_number("partial_rotary_factor", part) > 1:
            raise UserError(f"config.json: partial_rotary_factor must not exceed 1, found {part!r}")
        theta = positive_number("rope_theta", fields.get("rope_theta", config.get("rope_theta", 10000.0)))
        return cls(theta, scaling.read(fields, config), part)

    def width(self, head_dim: int) -> int:
        """How many dimensions of a head are rotated (an odd number is rounded up by the rotation, as in transformers).

        Raises:
            UserError: none is.
        """
        width = int(head_dim * self.partial_rotary_factor)
        if width < 1:
            raise UserError(
                f"config.json: partial_rotary_factor {self.partial_rotary_factor!r} of head_dim={head_dim} "
                "rotates nothing"
            )
        return width


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Angle per position of each rotated pair of dimensions, `[pairs]` fp32; those of short sequences.

    Raises:
        UserError: the settings do not fit the width of a head.
    """
    return rope.scaling.frequencies(rope.theta, rope.width(head_dim))


class Rotary(nn.Cell):
    """Cosine and sine of every position's angles."""

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        super().__init__()
        self.frequencies = Tensor(inverse_frequencies(rope, head_dim))
        self.by_length = rope.scaling.by_length(rope.theta, rope.width(head_dim))
        self.factor = rope.scaling.attention_factor

    def construct(self, position_ids: Tensor, all_positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Two tables `[B, S, 1, pairs]` fp32.

        Args:
            position_ids: `[B, S]`; B may be 1.
            all_positions: of the whole sequences, where `position_ids` are those of a part. The last position gives the
                length that some kinds depend on.
        """
        frequencies = self.frequencies
        if self.by_length is not None:
            frequencies = self.by_length((position_ids if all_positions is None else all_positions).max() + 1)
        angles = position_ids.astype(ms.float32).expand_dims(-1) * frequencies
        angles = angles.expand_dims(2)
        if self.factor == 1.0:
            return ops.cos(angles), ops.sin(angles)
        return ops.cos(angles) * self.factor, ops.sin(angles) * self.factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pair (i, i + pairs) of `x` `[B, S, heads, head_dim]` by its angle: the half-split convention.

    Dimensions from `2 * pairs` on stay as they are. Turned in the format of the tables, then rounded to that of `x`.
    """
    pairs, width = cos.shape[-1], x.shape[-1]
    if 2 * pairs == width:
        first, second = ops.split(x, pairs, -1)
        return ops.concat((first * cos - second * sin, second * cos + first * sin), -1).astype(x.dtype)
    first, second, rest = ops.split(x.astype(cos.dtype), [pairs, pairs, width - 2 * pairs], -1)
    return ops.concat((first * cos - second * sin, second * cos + first * sin, rest), -1).astype(x.dtype)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pair (2i, 2i + 1) of `x` `[B, S, heads, head_dim]` by its angle: the interleaved convention.

    Dimensions from `2 * pairs` on stay as they are. Formats as in `rotate`.
    """
    batch, length, heads, width = x.shape
    pairs = cos.shape[-1]
    turned = x[..., : 2 * pairs].reshape(batch, length, heads, pairs, 2)
    first, second = turned[..., 0], turned[..., 1]
    turned = ops.stack((first * cos - second * sin, second * cos + first * sin), -1)
    turned = turned.reshape(batch, length, heads, 2 * pairs).astype(x.dtype)
    return turned if 2 * pairs == width else ops.concat((turned, x[..., 2 * pairs :]), -1)
