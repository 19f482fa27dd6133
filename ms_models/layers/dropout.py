"""Dropout that is a function of the sample, so that it needs no state and is the same in every layout.

What is dropped follows from the token ids of the sample, the place of the layer in the model and the index of the
value. Ranks that hold copies of a tensor drop the same values of it, ranks that hold parts of it (heads) drop what one
process drops there, and a resumed or recomputed step repeats itself. A sample that comes again with the same ids drops
the same values; in masked-language training other tokens are hidden each time.

Integers wrap around at 32 bits. Adding and multiplying are the fast integer operations, hence `x * (2 * x + 1)`, a
bijection whose upper bits depend on all bits of x (Rivest et al. 1998, RC6), where there are many values.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

SPREAD = 0x61C88647  # 2**32 over the golden ratio, negated: far apart for neighbouring numbers


def scramble(x: Tensor) -> Tensor:
    """A bijection of int32 in which every bit depends on every bit (Wellons 2018, "lowbias32")."""
    x = ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 16), 0xFFFF)) * 0x7FEB352D
    x = ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 15), 0x1FFFF)) * (0x846CA68B - (1 << 32))
    return ops.bitwise_xor(x, ops.bitwise_and(ops.bitwise_right_shift(x, 16), 0xFFFF))


def sample_seeds(ids: Tensor) -> Tensor:
    """One int32 per sample, `[B]`, from its token ids `[B, S]` and their order."""
    place = scramble(ops.arange(ids.shape[1]).astype(ms.int32))
    mixed = scramble(ids.astype(ms.int32) * SPREAD + place)
    return scramble(mixed.sum(axis=1).astype(ms.int32))


class Dropout(nn.Cell):
    """Zeros a share of the values and scales the others by `1 / (1 - rate)`; in training only.

    Args:
        rate: share that is zeroed, in [0, 1).
        site: number of this layer among those of the model that drop.
        part: which of the equal parts along axis 1 this rank has; 0 where it has all.
    """

    def __init__(self, rate: float, site: int, part: int = 0) -> None:
        super().__init__()
        assert 0 <= rate < 1, f"dropout of {rate}"
        self.rate = rate
        self.site = site * 0x3C6EF35F % (1 << 31)
        self.part = part
        self.scale = 1.0 / (1.0 - rate)
        self.threshold = round(rate * (1 << 32)) - (1 << 31)

    def construct(self, x: Tensor, seeds: Tensor) -> Tensor:
        """`x` with values dropped.

        Args:
            x: `[B, S, N]` or `[B, H, S, N]`.
            seeds: `[B]`, see `sample_seeds`.
        """
        if not self.training or self.rate == 0:
            return x
        return x * (self.keep(x.shape, seeds).astype(x.dtype) * self.scale)

    def keep(self, shape: tuple[int, ...], seeds: Tensor) -> Tensor:
        """Which values stay, bool of the given shape."""
        rows = 1
        for size in shape[1:-1]:
            rows = rows * size
        row = ops.arange(self.part * rows, (self.part + 1) * rows).astype(ms.int32) * SPREAD
        key = scramble(scramble(seeds + self.site).expand_dims(1) + row).reshape(shape[:-1] + (1,))
        column = scramble(ops.arange(shape[-1]).astype(ms.int32) + SPREAD)
        value = key + column
        value = value * (value + value + 1) + scramble(key + SPREAD)
        return value * (value + value + 1) >= self.threshold
