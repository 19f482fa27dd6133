"""Accumulated gradients of one rank: summed over data-parallel replicas in flat buckets, with one global norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from mappings.holdings import Held
from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Group, Mesh

BUCKET_ELEMENTS = 8 << 20
"""Elements per all-reduce: large enough to hide latency, small enough that the flat copy is no second model."""


class GradientBuffers:
    """One fp32 accumulator per parameter, in the order of `parameters`.

    Attributes:
        accumulators: written by the jitted backward function, read by the jitted update.
    """

    def __init__(
        self, parameters: Sequence[Parameter], held: Mapping[str, Held], mesh: Mesh, compiled: Callable[[Any], Any]
    ) -> None:
        self.accumulators = ParameterTuple(
            [Parameter(Tensor(np.zeros(p.shape, np.float32)), name=f"gradient.{p.name}") for p in parameters]
        )
        self._sums = _sums([(p.size, held[p.name]) for p in parameters], mesh)
        self._world = mesh.group("tp", "cp", "dp", "pp")
        # A parameter that several ranks hold is counted by the first of them only.
        self._counted = Tensor(np.array([float(held[p.name].is_counted) for p in parameters], np.float32))
        self._squares = compiled(self._make_squares())

    def zero(self) -> None:
        """Clears the accumulators."""
        for accumulator in self.accumulators:
            ops.assign(accumulator, ops.zeros_like(accumulator))

    def all_reduce(self) -> None:
        """Sums over the ranks that hold the same weights and saw other samples, or use them at another stage."""
        for bucket, group in self._sums:
            members = [self.accumulators[index] for index in bucket]
            flat = all_reduce(ops.concat([member.reshape(-1) for member in members]), group)
            for member, piece in zip(members, ops.split(flat, [member.size for member in members]), strict=True):
                ops.assign(member, piece.reshape(member.shape))

    def norm(self) -> float:
        """Euclidean norm over every parameter of the model, each counted once; the same number on every rank."""
        # One number per rank: stages of a pipeline hold different parameters.
        own = (self._squares() * self._counted).asnumpy().astype(np.float64).sum()
        return float(np.sqrt(all_reduce(Tensor([own], ms.float32), self._world).asnumpy()[0]))

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


def _sums(parameters: Sequence[tuple[int, Held]], mesh: Mesh) -> list[tuple[list[int], Group]]:
    """Parameters that are summed together, by index, and the ranks over which they are."""
    kinds = {"dense": mesh.group("dp", "cp"), "experts": mesh.group("edp", "cp")}
    members: dict[str, list[int]] = {"dense": [], "experts": []}
    sizes = [size for size, _ in parameters]
    for index, (_, held) in enumerate(parameters):
        members["experts" if held.is_expert else "dense"].append(index)
    sums = [
        (bucket, kinds[kind])
        for kind, indices in members.items()
        if kinds[kind].size > 1
        for bucket in _buckets(indices, sizes)
    ]
    # A table that the first stage reads and the last one writes with.
    twice = [index for index, (_, held) in enumerate(parameters) if held.is_at_both_ends]
    if twice:
        sums += [(bucket, mesh.ends()) for bucket in _buckets(twice, sizes)]
    return sums


def _buckets(indices: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    buckets: list[list[int]] = []
    filled = BUCKET_ELEMENTS
    for index in indices:
        if filled + sizes[index] > BUCKET_ELEMENTS:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += sizes[index]
    return buckets
