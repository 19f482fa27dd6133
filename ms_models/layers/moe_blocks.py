"""Tokens laid out by expert, so that each expert multiplies its own only, in shapes known before the routing.

An *assignment* is a token at one of the experts chosen for it. The assignments to one expert are put end to end and
padded to whole blocks of rows; a block belongs to one expert. The number of blocks is bounded by the number of
assignments and of experts, so shapes are static although the routing is not, no assignment is ever dropped, and the
rows multiplied are at most `assignments + experts * block` instead of `tokens * experts`.

Milliseconds for forward and gradients of 8 experts, 2 per token, 1024 tokens, width 256, expert width 344, on a busy
machine (`tests/ms_models/measure_moe.py layer`), compiled / in PyNative: blocks 127 / 231; every expert on every token
220 / 452; a gather per expert of as many tokens as it has 194 (dynamic shapes) / 299 (counts read on the host).

Suffixes: T tokens, k chosen per token, E experts here, N blocks, B rows of a block, R = N * B rows.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

LARGEST_BLOCK = 128  # rows; larger ones are no faster and pad more


class BlockLayout(nn.Cell):
    """Where each assignment goes.

    Args:
        experts: number of experts here.
        first: index of the first of them among all experts.
    """

    def __init__(self, experts: int, first: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.experts = experts
        self.first = first

    def sizes(self, tokens: int, chosen: int) -> tuple[int, int]:
        """Number of blocks, and rows of one, for `tokens` tokens with `chosen` different experts each.

        A block is about half of an even share of the assignments. At most one block of each expert is not full, so
        with A assignments the blocks that could be needed are `min(E, A) + (A - min(E, A)) // B`.
        """
        most = tokens * min(chosen, self.experts)
        share = max(most // (2 * self.experts), 1)
        rows = min(1 << (share - 1).bit_length(), LARGEST_BLOCK)
        used = min(self.experts, most)
        return used + (most - used) // rows, rows

    def construct(self, chosen_Tk: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Places of all assignments.

        Args:
            chosen_Tk: int32 indices among all experts, different ones for each token.

        Returns:
            row_Tk: row of each assignment, int32; 0 where the expert is not here.
            here_Tk: whether the expert is here.
            source_R: assignment `token * k + choice` in each row, int32; 0 where the row is padding.
            filled_R: whether the row is none.
            owner_N: expert of each block, counted from the first one here, int32.
        """
        tokens, chosen = chosen_Tk.shape
        blocks, rows = self.sizes(tokens, chosen)
        flat = chosen_Tk.reshape(-1) - self.first
        is_at_EA = (ops.arange(self.experts).astype(ms.int32).expand_dims(-1) == flat).astype(ms.int32)
        nth_EA = ops.cumsum(is_at_EA, 1)
        blocks_E = ops.floor_div(nth_EA[:, -1] + (rows - 1), rows)
        end_E = ops.cumsum(blocks_E, 0)
        start_E1 = ((end_E - blocks_E) * rows).expand_dims(-1)
        place = (is_at_EA * (start_E1 + nth_EA - 1)).sum(0).astype(ms.int32)
        here = is_at_EA.sum(0) > 0
        # Rows begin as 0 and get 1 + the assignment; what has no place here adds nothing to row 0.
        number = ops.where(here, ops.arange(1, tokens * chosen + 1).astype(ms.int32), 0).astype(ms.int32)
        source = ops.scatter_nd(place.expand_dims(-1), number, (blocks * rows,)) - 1
        filled = source >= 0
        number_N1 = ops.arange(blocks).astype(ms.int32).expand_dims(-1)
        owner = (number_N1 >= end_E).astype(ms.int32).sum(-1).astype(ms.int32)
        return (
            place.reshape(tokens, chosen),
            here.reshape(tokens, chosen),
            ops.maximum(source, 0),
            filled,
            ops.minimum(owner, self.experts - 1),  # blocks that are not needed: any expert, nothing reads them
        )


def _sum_of_rows(rows_RM: Tensor, row_Tk: Tensor, scale_Tk: Tensor) -> Tensor:
    """`sum over k of scale * rows[row]`, `[T, M]`; rows of scale 0 may be anything, even not finite."""
    total = None
    for choice in range(row_Tk.shape[1]):
        scale = scale_Tk[:, choice : choice + 1]
        term = ops.where(scale != 0, ops.gather(rows_RM, row_Tk[:, choice], 0) * scale, 0.0)
        total = term if total is None else total + term
    return total


class Spread(nn.Cell):
    """Copies each token to the rows of its assignments. The gradient is read from there: a gather, not a scatter."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, x_TM: Tensor, row_Tk: Tensor, here_Tk: Tensor, source_R: Tensor) -> Tensor:
        """`[R, M]`; rows of padding hold some token."""
        return ops.gather(x_TM, ops.floor_div(source_R, row_Tk.shape[1]), 0)

    def bprop(
        self, x_TM: Tensor, row_Tk: Tensor, here_Tk: Tensor, source_R: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dx_TM = _sum_of_rows(dout, row_Tk, here_Tk.astype(dout.dtype))
        return dx_TM, ops.zeros_like(row_Tk), ops.zeros_like(here_Tk), ops.zeros_like(source_R)


class Collect(nn.Cell):
    """Sums the rows of each token's assignments, each times its weight."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(
        self, rows_RM: Tensor, weights_Tk: Tensor, row_Tk: Tensor, here_Tk: Tensor, source_R: Tensor, filled_R: Tensor
    ) -> Tensor:
        """`[T, M]`."""
        return _sum_of_rows(rows_RM, row_Tk, weights_Tk * here_Tk.astype(weights_Tk.dtype)).astype(rows_RM.dtype)

    def bprop(
        self,
        rows_RM: Tensor,
        weights_Tk: Tensor,
        row_Tk: Tensor,
        here_Tk: Tensor,
        source_R: Tensor,
        filled_R: Tensor,
        out: Tensor,
        dout: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        chosen = row_Tk.shape[1]
        scale_R = ops.gather(weights_Tk.reshape(-1), source_R, 0) * filled_R.astype(weights_Tk.dtype)
        dout = dout.astype(weights_Tk.dtype)  # products and sums in fp32
        drows_RM = (ops.gather(dout, ops.floor_div(source_R, chosen), 0) * scale_R.expand_dims(-1)).astype(
            rows_RM.dtype
        )
        found = [(ops.gather(rows_RM, row_Tk[:, choice], 0) * dout).sum(-1, keepdims=True) for choice in range(chosen)]
        dweights_Tk = ops.where(here_Tk, ops.concat(found, 1), 0.0)
        rest = (ops.zeros_like(row_Tk), ops.zeros_like(here_Tk), ops.zeros_like(source_R), ops.zeros_like(filled_R))
        return drows_RM, dweights_Tk, *rest


class BlockLinear(nn.Cell):
    """`x @ weight[owner].T` block by block. The copies of the weights are made again for the gradient, not kept."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.times = ops.BatchMatMul()
        self.times_transposed = ops.BatchMatMul(transpose_b=True)
        self.transposed_times = ops.BatchMatMul(transpose_a=True)

    def construct(self, x_NBI: Tensor, weight_EOI: Tensor, owner_N: Tensor) -> Tensor:
        """`[N, B, O]`, in the format of `x`, to which fp32 weights are rounded."""
        return self.times_transposed(x_NBI, ops.gather(weight_EOI, owner_N, 0).astype(x_NBI.dtype))

    def bprop(
        self, x_NBI: Tensor, weight_EOI: Tensor, owner_N: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        dx_NBI = self.times(dout, ops.gather(weight_EOI, owner_N, 0).astype(x_NBI.dtype))
        each_NOI = self.transposed_times(dout, x_NBI).astype(weight_EOI.dtype)
        return dx_NBI, ops.unsorted_segment_sum(each_NOI, owner_N, weight_EOI.shape[0]), ops.zeros_like(owner_N)
