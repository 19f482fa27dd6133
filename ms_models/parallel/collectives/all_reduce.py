"""Sums over a group: `AllReduce`, and the two one-sided forms that sharded layers are made of."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_models.parallel.collectives.device import chosen, require_carried
from ms_models.parallel.mesh import Group

# Integers cross as digits of 12 bits in fp32: sums of up to 4096 digits stay at or below 2**24 and are exact.
DIGIT = 4096


def nothing(x: Tensor) -> Tensor:
    """-0.0 in the shape and dtype of `x`: what a rank adds to a sum that it has no part in."""
    return ops.full(x.shape, -0.0, dtype=ms.float32).astype(x.dtype)  # the CPU fills no bf16


class AllReduce(nn.Cell):
    """Sum over the group. Integers wrap around as in their dtype. The gradient is the sum of the group's gradients.

    Args:
        group: the ranks that take part.
        native: False builds it from the sum-AllReduce of fp32 and fp16; None as the device can.
    """

    def __init__(self, group: Group, native: bool | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.size = group.size
        self.native = chosen(native)
        self.sum: Any = ops.AllReduce(ops.ReduceOp.SUM, group.name) if group.size > 1 else None

    def construct(self, x: Tensor) -> Tensor:
        if self.size == 1:
            return x
        require_carried(x)
        if self.native or x.dtype == ms.float32 or x.dtype == ms.float16:
            return self.sum(x)
        if x.dtype == ms.bfloat16:
            return self.sum(x.astype(ms.float32)).astype(ms.bfloat16)
        return self._sum_integers(x, 3 if x.dtype == ms.int32 else 6)

    def _sum_integers(self, x: Tensor, count: int) -> Tensor:
        digits = []
        rest = x
        for _ in range(count - 1):
            above = ops.floor_div(rest, DIGIT)
            digits.append((rest - above * DIGIT).astype(ms.float32))
            rest = above
        digits.append(rest.astype(ms.float32))
        sums = self.sum(ops.stack(digits)).astype(x.dtype)
        total = sums[count - 1]
        for place in range(count - 1):
            total = total * DIGIT + sums[count - 2 - place]
        return total


class CopyToGroup(nn.Cell):
    """Identity forward, sum over the group backward: where a replicated tensor enters sharded layers."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.all_reduce = AllReduce(group)

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.all_reduce(dout),)


class ReduceFromGroup(nn.Cell):
    """Sum over the group forward, identity backward: where partial results of sharded layers become replicated."""

    def __init__(self, group: Group) -> None:
        super().__init__(auto_prefix=False)
        self.all_reduce = AllReduce(group)

    def construct(self, x: Tensor) -> Tensor:
        return self.all_reduce(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout,)
