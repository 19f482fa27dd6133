"""Accumulated gradients of one rank: summed over data-parallel replicas in flat buckets, with one global norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from mappings.shards import Shard
from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh

BUCKET_ELEMENTS = 8 << 20
"""Elements per all-reduce: large enough to hide latency, small enough that the flat copy is no second model."""


class GradientBuffers:
    """One fp32 accumulator per parameter, in the order of `parameters`.

    Attributes:
        accumulators: written by the jitted backward function, read by the jitted update.
    """

    def __init__(
        self, parameters: Sequence[Parameter], shards: Mapping[str, Shard], mesh: Mesh, compiled: Callable[[Any], Any]
    ) -> None:
        self.accumulators = ParameterTuple(
            [Parameter(Tensor(np.zeros(p.shape, np.float32)), name=f"gradient.{p.name}") for p in parameters]
        )
        self._replicas = mesh.group("dp", "cp")
        self._tensor_group = mesh.group("tp")
        # A parameter that is whole on every tp rank is counted by the first of them only.
        is_first = self._tensor_group.index == 0
        counts = [1.0 if is_first or shards[p.name].parameter.cut is not None else 0.0 for p in parameters]
        self._counted = Tensor(np.array(counts, np.float32))
        self._buckets = _buckets([p.size for p in parameters])
        self._squares = compiled(self._make_squares())

    def zero(self) -> None:
        """Clears the accumulators."""
        for accumulator in self.accumulators:
            ops.assign(accumulator, ops.zeros_like(accumulator))

    def all_reduce(self) -> None:
        """Sums over the ranks that hold the same weights and saw other samples."""
        if self._replicas.size == 1:
            return
        for bucket in self._buckets:
            members = [self.accumulators[index] for index in bucket]
            flat = all_reduce(ops.concat([member.reshape(-1) for member in members]), self._replicas)
            for member, piece in zip(members, ops.split(flat, [member.size for member in members]), strict=True):
                ops.assign(member, piece.reshape(member.shape))

    def norm(self) -> float:
        """Euclidean norm over every parameter of the model, each counted once; the same number on every rank."""
        squares = all_reduce(self._squares() * self._counted, self._tensor_group)
        return float(np.sqrt(squares.asnumpy().astype(np.float64).sum()))

    def _make_squares(self) -> Callable[[], Tensor]:
        accumulators = self.accumulators

        def squares() -> Tensor:
            return ops.stack([ops.square(accumulator).sum() for accumulator in accumulators])

        return squares


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied by, as in torch.nn.utils.clip_grad_norm_; `limit` 0 is no clipping."""
    return min(1.0, limit / (norm + 1e-6)) if limit else 1.0


def agree(flag: bool, mesh: Mesh) -> bool:
    """Whether `flag` is true on any rank: the same answer everywhere, so that all ranks take the same branch."""
    world = mesh.group("tp", "cp", "dp", "pp")
    return bool(all_reduce(Tensor([float(flag)], ms.float32), world).asnumpy()[0] > 0)


def _buckets(sizes: Sequence[int]) -> list[list[int]]:
    buckets: list[list[int]] = []
    filled = BUCKET_ELEMENTS
    for index, size in enumerate(sizes):
        if filled + size > BUCKET_ELEMENTS:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets
