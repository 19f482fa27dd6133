"""`UlyssesAttention`: the ranks exchange heads for positions, so that each has some heads of the whole sequence.

DeepSpeed Ulysses (Jacobs et al. 2023): one all-to-all before attention and one after it. Queries, keys and values
cross in one tensor, because calls that do not depend on each other might be made in another order on another rank.
"""

from __future__ import annotations

import math

from mindspore import Tensor, nn, ops

from ms_models.layers.attention import grouped_attention
from ms_models.parallel.collectives import AllToAll, GatherFromGroup
from ms_models.parallel.context import ULYSSES, ContextPlace


class UlyssesAttention(nn.Cell):
    """`grouped_attention` whose positions are spread over the ranks of a group. Called the same way on every rank.

    Where the ranks do not divide the key heads, these are repeated first, as often as it takes.

    Args:
        place: which positions the rank holds; of kind `ulysses`. Its `check_heads` tells whether the heads fit.
        scale: of the scores; `1 / sqrt(D)` where not given.
        cap: soft cap of the scaled scores; None for none.
    """

    def __init__(self, place: ContextPlace, scale: float | None = None, cap: float | None = None) -> None:
        super().__init__(auto_prefix=False)
        assert place.context == ULYSSES, place.context
        self.size = place.group.size
        self.scale_ = scale
        self.cap = cap
        self.to_heads = AllToAll(place.group, 2, 1)
        self.to_positions = AllToAll(place.group, 1, 2)
        self.gather = GatherFromGroup(place.group, 2)

    def construct(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKE: Tensor, bias: Tensor) -> Tensor:
        """`[B, S, H * E]` for this rank's queries.

        Args:
            q_BSHD: this rank's queries.
            k_BTKD: this rank's keys.
            v_BTKE: their values, of any width.
            bias: `[B or 1, 1, S, T * ranks]`: this rank's queries against all keys in the order of the sequence. Or
                `[B or 1, 1, S * ranks, T * ranks]` for the queries of all ranks, which saves a gathering. A constant:
                it gets no gradient.

        Raises:
            ValueError: the ranks do not divide the query heads; `ContextPlace.check_heads` says so earlier.
        """
        heads, width, value_width = q_BSHD.shape[2], q_BSHD.shape[3], v_BTKE.shape[3]
        k_BTKD, v_BTKE = self.repeated(k_BTKD), self.repeated(v_BTKE)
        groups = k_BTKD.shape[2] // self.size
        parts = (self.by_rank(q_BSHD), self.by_rank(k_BTKD), self.by_rank(v_BTKE))
        packed = self.to_heads(ops.concat(parts, 3)).squeeze(2)
        if bias.shape[2] == q_BSHD.shape[1] and self.size > 1:
            bias = self.gather(ops.depend(bias, packed))
        batch, length, _ = packed.shape
        end_of_q, end_of_k = heads // self.size * width, heads // self.size * width + groups * width
        q = packed[..., :end_of_q].reshape(batch, length, heads // self.size, width)
        k = packed[..., end_of_q:end_of_k].reshape(batch, length, groups, width)
        v = packed[..., end_of_k:].reshape(batch, length, groups, value_width)
        return self.to_positions(grouped_attention(q, k, v, ops.stop_gradient(bias), self.scale_, self.cap))

    def repeated(self, x_BTKD: Tensor) -> Tensor:
        """Each key head as often as makes their number a multiple of the ranks; copies stay side by side."""
        batch, length, groups, width = x_BTKD.shape
        times = self.size // math.gcd(groups, self.size)
        if times == 1:
            return x_BTKD
        x = x_BTKD.expand_dims(3).broadcast_to((batch, length, groups, times, width))
        return x.reshape(batch, length, groups * times, width)

    def by_rank(self, x_BSHD: Tensor) -> Tensor:
        """`[B, S, ranks, H / ranks * D]`."""
        batch, length, heads, width = x_BSHD.shape
        if heads % self.size != 0:
            raise ValueError(f"{heads} heads over {self.size} context-parallel ranks")
        return x_BSHD.reshape(batch, length, self.size, heads // self.size * width)
