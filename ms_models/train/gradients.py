"""Accumulated gradients of one rank: summed over replicas in flat buckets, with one global norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.optimizer_sharding import OptimizerSharding


class GradientBuffers:
    """fp32 accumulators, one for each bucket.

    Up to ZeRO stage 1 a rank adds up whole gradients and the ranks sum once a step, which costs a model's size in fp32.
    From stage 2 on they sum after each micro-batch and a rank adds up its own rows only: with n replicas 4 (1 - 1/n)
    bytes per parameter less, for as many times the traffic as there are micro-batches.

    Attributes:
        accumulators: `[shares, width]` up to stage 1, then `[1, width]`.
    """

    def __init__(self, sharding: OptimizerSharding) -> None:
        self.sharding = sharding
        self.accumulators = sharding.accumulators("gradient")

    def adder(self, parameters: Sequence[Parameter]) -> Callable[[Sequence[Tensor]], None]:
        """A function that adds gradients of `parameters`, in their order, for use within what `ms.jit` compiles.

        They have to fill their buckets: parameters whose gradients come apart need different labels.
        """
        place_of = {parameter.name: place for place, parameter in enumerate(parameters)}
        numbered = [(n, b) for n, b in enumerate(self.sharding.buckets) if b.names[0] in place_of]
        places = tuple(tuple(place_of[name] for name in bucket.names) for _, bucket in numbered)
        assert sum(map(len, places)) == len(parameters), "parameters of the same bucket come apart"
        buckets = nn.CellList([bucket for _, bucket in numbered], auto_prefix=False)
        accumulators = tuple(self.accumulators[number] for number, _ in numbered)
        keeps = self.sharding.keeps_gradients

        def add(gradients: Sequence[Tensor]) -> None:
            for i, bucket in enumerate(buckets):
                flat = bucket.flat([gradients[place] for place in places[i]])
                ops.assign_add(accumulators[i], flat if keeps else bucket.scatter(flat).reshape(1, -1))

        return add

    def zero(self) -> None:
        """Clears the accumulators."""
        for accumulator in self.accumulators:
            ops.assign(accumulator, ops.zeros_like(accumulator))

    def reduce(self) -> tuple[Tensor, ...]:
        """Sums over the ranks that hold the same weights and saw other samples, or use them at another stage.

        Returns:
            `[width]` of each bucket: what this rank keeps.
        """
        keeps = self.sharding.keeps_gradients
        return tuple(
            bucket.finish(bucket.scatter(accumulator) if keeps else accumulator.reshape(-1))
            for bucket, accumulator in zip(self.sharding.buckets, self.accumulators, strict=True)
        )

    def norm(self, reduced: Sequence[Tensor]) -> float:
        """Euclidean norm over every parameter of the model, each element counted once; the same on every rank."""
        # One number per rank: stages of a pipeline hold different parameters.
        counted = [
            float(ops.square(kept).sum().asnumpy())
            for bucket, kept in zip(self.sharding.buckets, reduced, strict=True)
            if bucket.is_counted
        ]
        mesh = self.sharding.mesh
        total = all_reduce(Tensor([sum(counted)], ms.float32), mesh.group("tp", "cp", "dp", "pp"))
        return float(np.sqrt(total.asnumpy()[0]))


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied by, as in torch.nn.utils.clip_grad_norm_; `limit` 0 is no clipping."""
    return min(1.0, limit / (norm + 1e-6)) if limit else 1.0


def agree(flag: bool, mesh: Mesh) -> bool:
    """Whether `flag` is true on any rank: the same answer everywhere, so that all ranks take the same branch."""
    return agree_all([flag], mesh)[0]


def agree_all(flags: Sequence[bool], mesh: Mesh) -> list[bool]:
    """`agree` for several flags at once."""
    world = mesh.group("tp", "cp", "dp", "pp")
    counts = all_reduce(Tensor([float(flag) for flag in flags], ms.float32), world).asnumpy()
    return [bool(count > 0) for count in counts]
