"""`RingAttention`: each rank keeps its queries, and the keys and values of all ranks come by.

Exact attention with one block of keys in memory at a time (Liu et al. 2023, Ring Attention). Softmax over blocks: of
every row the largest score `m` so far, the sum `l` of `exp(score - m)` and the sum `a` of `exp(score - m) value` are
kept; a block with a larger score scales `l` and `a` down (Milakov and Gimelshein 2018). In the end the output is
`a / l`. `m` and `l` are not merged into `m + log l`: a row that may see nothing has `m` at the lowest fp32, where the
logarithm is lost, and must become uniform over all keys as it does in `grouped_attention`.

The backward pass is a second round: with `p = exp(score - m) / l` and `d = sum(dy * y)` per row,
`dv = p' dy` and `dscore = p (dy v' - d)`. Gradients of keys and values travel with them and arrive where they belong.

Under a causal mask half of the pairs need no computing. A rank holds one early and one late chunk of the sequence (see
`ContextPlace`): of the keys of a rank before it in the group, only the early ones are seen by its queries; keys of a
rank after it are seen by its late queries only. Either way it is one half, so no rank waits for another.

Suffixes: B batch, S this rank's queries, T one rank's keys, H query heads, K key heads, N = H / K, D key width,
E value width.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_models.layers.attention import multiply, multiply_transposed, soft_cap
from ms_models.parallel.collectives import Shift
from ms_models.parallel.context import RING, ContextPlace

transposed_multiply = ops.BatchMatMul(transpose_a=True)


class RingAttention(nn.Cell):
    """`grouped_attention` whose keys are spread over the ranks of a group. Called the same way on every rank.

    Args:
        place: which positions the rank holds; of kind `ring`.
        scale: of the scores; `1 / sqrt(D)` where not given.
        cap: soft cap of the scaled scores; None for none.
        causal: that the bias hides all later keys, so that half of the work can be left out. The one difference: a row
            that sees nothing, which is padding, becomes uniform over the keys that were compared, not over all.
    """

    def __init__(
        self, place: ContextPlace, scale: float | None = None, cap: float | None = None, *, causal: bool = False
    ) -> None:
        super().__init__(auto_prefix=False)
        assert place.context == RING, place.context
        self.round = _Round(place, scale, cap, causal)

    def construct(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKE: Tensor, bias: Tensor) -> Tensor:
        """`[B, S, H * E]` for this rank's queries.

        Args:
            q_BSHD: this rank's queries.
            k_BTKD: this rank's keys.
            v_BTKE: their values, of any width.
            bias: `[B or 1, 1, S, T * ranks]`: this rank's queries against all keys in the order of the sequence. A
                constant: it gets no gradient.
        """
        y, _, _ = self.round(q_BSHD, k_BTKD, v_BTKE, bias)
        return y


class _Round(nn.Cell):
    """The output, and `m` and `l` of every row for the way back."""

    def __init__(self, place: ContextPlace, scale: float | None, cap: float | None, causal: bool) -> None:
        super().__init__(auto_prefix=False)
        self.place = place
        self.size = place.group.size
        self.sources = tuple((place.group.index - step) % self.size for step in range(self.size))
        # Per step: whether only the late queries, or only the early keys, take part.
        self.is_late = tuple(causal and source > place.group.index for source in self.sources)
        self.is_early = tuple(causal and source < place.group.index for source in self.sources)
        self.scale_ = scale
        self.cap = cap
        self.shift = Shift(place.group, 1)

    def construct(self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKE: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries = self.grouped(q_BSHD * self.scale_of(q_BSHD), k_BTKD.shape[2])
        travelling = self.packed(k_BTKD, v_BTKE)
        seen: Any = None
        for step in range(self.size):
            if step > 0:
                travelling = self.shift(travelling)
            k_BKTD, v_BKTE = self.unpacked(self.early(travelling, step), k_BTKD.shape[-1])
            scores, _ = self.scores(self.late(queries, step), k_BKTD, bias, step)
            if self.is_late[step]:
                merged = self.merged([self.late(part, step) for part in seen], scores, v_BKTE)
                seen = [ops.concat((self.before_late(seen[i]), merged[i]), 3) for i in range(3)]
            else:
                seen = self.merged(seen, scores, v_BKTE)
        highest, total, values = seen
        return self.ungrouped(values / total).astype(v_BTKE.dtype), highest, total

    def bprop(
        self, q_BSHD: Tensor, k_BTKD: Tensor, v_BTKE: Tensor, bias: Tensor, out: Any, dout: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        y, highest, total = out
        groups, width = k_BTKD.shape[2], k_BTKD.shape[-1]
        scale = self.scale_of(q_BSHD)
        queries = self.grouped(q_BSHD * scale, groups)
        dy = self.grouped(dout[0].reshape(*q_BSHD.shape[:3], -1), groups)
        y = self.grouped(y.reshape(*q_BSHD.shape[:3], -1), groups)
        delta = (dy.astype(ms.float32) * y.astype(ms.float32)).sum(axis=-1, keepdims=True)
        travelling = self.packed(k_BTKD, v_BTKE)
        gradient: Any = None
        dq: Any = None
        for step in range(self.size):
            if step > 0:
                # Ranks must make their calls in one order, so every shift waits for the one before it.
                travelling = self.shift(ops.depend(travelling, gradient))
                gradient = self.shift(ops.depend(gradient, travelling))
            k_BKTD, v_BKTE = self.unpacked(self.early(travelling, step), width)
            q_here, dy_here = self.late(queries, step), self.late(dy, step)
            scores, slope = self.scores(q_here, k_BKTD, bias, step)
            weights = ops.exp(scores - self.late(highest, step)) / self.late(total, step)
            dv = self.summed(weights.astype(dy.dtype), dy_here)
            dscores = weights * (self.against(dy_here, v_BKTE) - self.late(delta, step))
            if slope is not None:
                dscores = dscores * slope
            dscores = dscores.astype(queries.dtype)
            here = ops.concat((self.summed(dscores, q_here), dv), -1).astype(ms.float32)
            more = self.times(dscores, k_BKTD)
            if step == 0:
                gradient, dq = here, more
            elif self.is_late[step]:
                gradient, dq = gradient + here, ops.concat((self.before_late(dq), self.late(dq, step) + more), 3)
            elif self.is_early[step]:
                half = here.shape[2]
                gradient, dq = ops.concat((gradient[:, :, :half] + here, gradient[:, :, half:]), 2), dq + more
            else:
                gradient, dq = gradient + here, dq + more
        gradient = self.shift(gradient).transpose(0, 2, 1, 3)  # the last step home
        dk, dv = gradient[..., :width], gradient[..., width:]
        dq = self.ungrouped(dq).reshape(q_BSHD.shape) * scale
        return (
            dq.astype(q_BSHD.dtype),
            dk.astype(k_BTKD.dtype),
            dv.astype(v_BTKE.dtype),
            ops.zeros_like(bias),
        )

    def merged(self, seen: Any, scores: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`m`, `l` and `a` after one more block; `seen` are those before it, None for the first."""
        highest = scores.max(axis=-1, keepdims=True)
        if seen is None:
            weights = ops.exp(scores - highest)
            return highest, weights.sum(axis=-1, keepdims=True), self.times(weights, v_BKTE)
        highest = ops.maximum(seen[0], highest)
        shrink = ops.exp(seen[0] - highest)
        weights = ops.exp(scores - highest)
        total = seen[1] * shrink + weights.sum(axis=-1, keepdims=True)
        return highest, total, seen[2] * shrink + self.times(weights, v_BKTE)

    def scale_of(self, q_BSHD: Tensor) -> float:
        """The scale of the scores."""
        return q_BSHD.shape[-1] ** -0.5 if self.scale_ is None else self.scale_

    def grouped(self, x_BSHD: Tensor, groups: int) -> Tensor:
        """`[B, K, N, S, D]`: the query heads of each key head."""
        batch, length, heads, width = x_BSHD.shape
        return x_BSHD.reshape(batch, length, groups, heads // groups, width).transpose(0, 2, 3, 1, 4)

    def ungrouped(self, x_BKNSE: Tensor) -> Tensor:
        """`[B, S, H * E]`."""
        batch, groups, each, length, width = x_BKNSE.shape
        return x_BKNSE.transpose(0, 3, 1, 2, 4).reshape(batch, length, groups * each * width)

    def packed(self, k_BTKD: Tensor, v_BTKE: Tensor) -> Tensor:
        """`[B, K, T, D + E]`: keys and values as one tensor, so that they travel in one call."""
        return ops.concat((k_BTKD, v_BTKE), -1).transpose(0, 2, 1, 3)

    def unpacked(self, travelling: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Keys and values again."""
        return travelling[..., :width], travelling[..., width:]

    def scores(self, q_BKNSD: Tensor, k_BKTD: Tensor, bias: Tensor, step: int) -> tuple[Tensor, Tensor | None]:
        """`[B, K, N, S, T]` fp32 against the keys that are here in a step; the slope of the cap, where there is one."""
        scores = self.against(q_BKNSD, k_BKTD)
        slope = None
        if self.cap is not None:
            scores = soft_cap(scores, self.cap)
            slope = 1.0 - ops.square(scores / self.cap)
        bias = self.place.part_of(bias, 3, self.sources[step]).expand_dims(1)
        return scores + self.late(bias, step)[..., : k_BKTD.shape[2]], slope

    def late(self, x_BKNSD: Tensor, step: int) -> Tensor:
        """The rows of the queries that take part in a step."""
        return x_BKNSD[:, :, :, x_BKNSD.shape[3] // 2 :] if self.is_late[step] else x_BKNSD

    def before_late(self, x_BKNSD: Tensor) -> Tensor:
        """The rows of the early queries."""
        return x_BKNSD[:, :, :, : x_BKNSD.shape[3] // 2]

    def early(self, x_BKTD: Tensor, step: int) -> Tensor:
        """The keys that take part in a step."""
        return x_BKTD[:, :, : x_BKTD.shape[2] // 2] if self.is_early[step] else x_BKTD

    def against(self, x_BKNSD: Tensor, k_BKTD: Tensor) -> Tensor:
        """`x k'` fp32, `[B, K, N, S, T]`."""
        batch, groups, each, length, width = x_BKNSD.shape
        y = multiply_transposed(x_BKNSD.reshape(batch, groups, each * length, width), k_BKTD)
        return y.astype(ms.float32).reshape(batch, groups, each, length, -1)

    def times(self, w_BKNST: Tensor, v_BKTE: Tensor) -> Tensor:
        """`w v` fp32, `[B, K, N, S, E]`."""
        batch, groups, each, length, keys = w_BKNST.shape
        y = multiply(w_BKNST.astype(v_BKTE.dtype).reshape(batch, groups, each * length, keys), v_BKTE)
        return y.astype(ms.float32).reshape(batch, groups, each, length, -1)

    def summed(self, w_BKNST: Tensor, x_BKNSE: Tensor) -> Tensor:
        """`w' x`, summed over the queries of all query heads of a key head: `[B, K, T, E]`."""
        batch, groups, each, length, keys = w_BKNST.shape
        return transposed_multiply(
            w_BKNST.reshape(batch, groups, each * length, keys), x_BKNSE.reshape(batch, groups, each * length, -1)
        )
