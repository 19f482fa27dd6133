"""Dynamic NTK scaling: the base grows with the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import mindspore as ms
from mindspore import Tensor, nn, ops

from mappings.errors import UserError
from ms_models.layers.rope_scaling import RopeScaling, exponents, full_length, positive_number


class DynamicFrequencies(nn.Cell):
    """Frequencies of a sequence, from its length."""

    def __init__(self, theta: float, width: int, factor: float, limit: float) -> None:
        super().__init__()
        self.theta = theta
        self.power = width / (width - 2)
        self.exponents = Tensor(exponents(width))
        self.slope, self.offset = factor / limit, factor - 1.0
        self.limit = limit

    def construct(self, length: Tensor) -> Tensor:
        longest = ops.maximum(length.astype(ms.float32), self.limit)
        base = self.theta * ops.pow(longest * self.slope - self.offset, self.power)
        return 1.0 / ops.pow(base, self.exponents)


@dataclass(frozen=True)
class DynamicRope(RopeScaling):
    """Plain up to the model's length; beyond it, the base is stretched so that the slowest pair keeps its range.

    `theta * (factor * length / limit - (factor - 1)) ** (width / (width - 2))`, the form transformers computes. Here it
    depends on the sequence at hand only, where a module of transformers also remembers the longest one it has met.
    """

    kind: ClassVar[str] = "dynamic"
    factor: float
    limit: float
    """Length up to which nothing changes: `max_position_embeddings`."""

    @classmethod
    def read(cls, fields: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        return cls(positive_number("factor", fields.get("factor")), full_length(config))

    def by_length(self, theta: float, width: int) -> DynamicFrequencies:
        if width <= 2:
            raise UserError(f"config.json: rope type 'dynamic' needs more than 2 rotated dimensions, found {width}")
        return DynamicFrequencies(theta, width, self.factor, self.limit)
