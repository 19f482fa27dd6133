"""Sums, means and maxima over bags of embeddings."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from . import init
from .module import Module

MODES = ("sum", "mean", "max")


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of `weight` `[n, d]`, joined for each bag: `[bags, d]`. An empty bag is zero.

    Args:
        input: `[bags, size]`, or `[entries]` with `offsets`.
        offsets: `[bags]`, where each bag starts; with `include_last_offset` also where the last one ends.
        mode: `sum`, `mean` or `max`.
        per_sample_weights: as `input`; factors of the rows, for `sum` only.
        padding_idx: entries with this index take no part.
    """
    if mode not in MODES:
        raise ValueError(f"mode has to be one of sum, mean or max, not {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError("per_sample_weights is only supported for mode='sum'")
    member = _membership(input, offsets, include_last_offset)
    entries = input.reshape(-1)
    rows = ops.gather(weight, entries, 0)
    if padding_idx is not None:
        member = ops.logical_and(member, entries != padding_idx % weight.shape[0])
    if mode == "max":
        held = ops.where(member.expand_dims(-1), rows.expand_dims(0), ops.full((), -float("inf"), dtype=rows.dtype))
        present = member.any(-1, True)
        best = ops.max(ops.where(present.expand_dims(-1), held, ops.zeros_like(held)), 1)[0]
        return best
    taking = member.astype(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape((-1, 1))
    total = ops.matmul(taking, rows)
    if mode == "sum":
        return total
    count = taking.sum(-1, keepdims=True)
    return total / ops.maximum(count, ops.ones_like(count))


def _membership(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Which bag has which entry, bool `[bags, entries]`."""
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError("if input is 2D, then offsets has to be None")
        bags, size = input.shape
        bag_of = ops.arange(bags * size) // size
        return bag_of.expand_dims(0) == ops.arange(bags).expand_dims(1)
    if input.ndim != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}")
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    places = ops.arange(input.shape[0]).astype(ms.int64).expand_dims(0)
    starts = offsets.astype(ms.int64)
    ends = ops.cat([starts[1:], ops.full((1,), input.shape[0], dtype=ms.int64)])
    if include_last_offset:
        starts, ends = starts[:-1], starts[1:]
    return ops.logical_and(places >= starts.expand_dims(1), places < ends.expand_dims(1))


class EmbeddingBag(Module):
    """`embedding_bag` of a table `weight` `[num_embeddings, embedding_dim]` drawn from N(0, 1)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise AssertionError(f"padding_idx {padding_idx} must be within the {num_embeddings} embeddings")
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(init.empty((num_embeddings, embedding_dim), dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values; the row of `padding_idx` is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            values = self.weight.asnumpy().copy()
            values[self.padding_idx] = 0
            self.weight.set_data(Tensor(values, self.weight.dtype))

    def construct(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        settings = (self.mode, per_sample_weights, self.include_last_offset, self.padding_idx)
        return embedding_bag(input, self.weight, offsets, *settings)
