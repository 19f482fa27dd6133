"""The two ends of a language model that are cut along the vocabulary: embedding and cross-entropy.

Each rank holds `rows` consecutive tokens. Rows past the vocabulary are padding: no token looks them up, and they take
no part in the softmax.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import GatherFromGroup, ReduceFromGroup
from ms_models.parallel.logarithm import Log
from ms_models.parallel.mesh import Group

IGNORED = -100  # Hugging Face's label for a position without a target
LOWEST = float(np.finfo(np.float32).min)  # finite, so that no inf - inf can make a NaN


class VocabParallelEmbedding(nn.Cell):
    """Rows of a table by token id; each rank looks up the tokens it holds and the group sums.

    Args:
        rows: rows per rank, padding included.
        width: length of a row.
        group: the ranks the vocabulary is cut over.
        padding_id: token whose lookups give its row no gradient, as in transformers where a pad token is set.
        scale: what every looked-up row is multiplied by; None for nothing.
        leave: how the ranks' rows become their sum: on every rank where not given, or each rank's part of it.
        compute: number format of the rows that are looked up, in which the layers behind then compute; None for that
            of the table.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        group: Group,
        padding_id: int | None = None,
        scale: float | None = None,
        leave: nn.Cell | None = None,
        compute: Any = None,
    ) -> None:
        super().__init__()
        self.weight = Parameter(ops.zeros((rows, width), ms.float32), name="weight")
        self.whole = group.size == 1
        self.rows = rows
        self.start = group.index * rows
        self.reduce = leave or ReduceFromGroup(group)
        self.padding_id = padding_id
        self.scale = scale
        self.compute = compute

    def construct(self, ids: Tensor) -> Tensor:
        rows = self.look_up(ids)
        if self.compute is not None:
            rows = rows.astype(self.compute)
        if self.padding_id is not None:
            rows = ops.where((ids != self.padding_id).expand_dims(-1), rows, ops.stop_gradient(rows))
        if not self.whole:
            rows = self.reduce(rows)
        return rows if self.scale is None else rows * self.scale

    def look_up(self, ids: Tensor) -> Tensor:
        """Rows `[..., width]` of the tokens `ids` `[...]` that this rank holds, zeros for the others."""
        if self.whole:
            return ops.gather(self.weight, ids, 0)
        local = ids - self.start
        held = ops.logical_and(local >= 0, local < self.rows)
        rows = ops.gather(self.weight, ops.where(held, local, 0), 0)
        return rows * held.astype(rows.dtype).expand_dims(-1)


class VocabParallelCrossEntropy(nn.Cell):
    """Cross-entropy per position, from logits of which each rank holds some columns.

    `loss = log(sum(exp(logits))) - logits[label]`; zero where the label is `IGNORED`, NaN where it
    is no token of the vocabulary. Computed in fp32.

    Args:
        vocab: size of the real vocabulary.
        rows: columns per rank, padding included.
        group: the ranks the vocabulary is cut over.
    """

    def __init__(self, vocab: int, rows: int, group: Group) -> None:
        super().__init__()
        self.vocab = vocab
        self.rows = rows
        self.start = group.index * rows
        self.real = min(max(vocab - self.start, 0), rows)
        self.reduce = ReduceFromGroup(group)
        self.gather = GatherFromGroup(group, 0)
        self.log = Log()

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses `[N]` fp32 for `logits` `[N, rows]` and integer `labels` `[N]`, ids of the whole vocabulary."""
        logits = self.without_padding(logits)
        highest = ops.stop_gradient(logits).max(axis=-1).expand_dims(0)
        highest = self.gather(highest).max(axis=0)
        total = self.reduce(ops.exp(logits - highest.expand_dims(-1)).sum(axis=-1))
        local = labels - self.start
        held = ops.logical_and(local >= 0, local < self.real)
        column = ops.where(held, local, 0).astype(ms.int32).expand_dims(-1)
        target = ops.gather_elements(logits, 1, column).squeeze(-1)
        target = self.reduce(ops.where(held, target, 0.0))
        known = ops.logical_and(labels >= 0, labels < self.vocab)
        losses = ops.where(known, self.log(total) + highest - target, float("nan"))
        return ops.where(labels == IGNORED, 0.0, losses)

    def hits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Where the label is the likeliest token of the whole vocabulary, the first of several: `[N]` fp32, 1 or 0.

        Args:
            logits: `[N, rows]`, this rank's columns.
            labels: `[N]` integers, ids of the whole vocabulary.
        """
        logits = self.without_padding(logits)
        highest = self.gather(logits.max(axis=-1).expand_dims(0))
        tokens = self.gather((logits.argmax(axis=-1).astype(ms.int32) + self.start).expand_dims(0))
        rank = highest.argmax(axis=0).astype(ms.int32).expand_dims(0)
        token = ops.gather_elements(tokens, 0, rank).squeeze(0)
        return (token == labels).astype(ms.float32)

    def without_padding(self, logits: Tensor) -> Tensor:
        """The logits as fp32, those of columns past the vocabulary out of reach."""
        logits = logits.astype(ms.float32)
        if self.real < self.rows:
            return ops.where(ops.arange(self.rows) < self.real, logits, LOWEST)
        return logits
