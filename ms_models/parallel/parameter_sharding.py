"""`ParameterSharding`: parameters divided over the replicas, whole only while they are used (ZeRO stage 3).

A rank keeps its rows of every parameter in flat buffers. A layer's parameters are gathered when its forward pass begins
and given back when it ends, and once more for its backward pass, which computes the layer again from its input; its
gradients are summed to their owners at once. What is outside the layers (tables, last norm, head) is there during a
step. The parameters of the model are single elements in between.

Not under `ms.jit`, where a parameter has one place and one size for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from ms_models.compat.device import synchronize
from ms_models.parallel.optimizer_sharding import OptimizerSharding

Adder = Callable[[Sequence[Parameter]], Callable[[Sequence[Tensor]], None]]
"""For some parameters, a function that adds gradients of theirs to what the optimizer reads."""


class ParameterSharding:
    """Takes the parameters of a model into flat buffers, and wraps its layers.

    Args:
        layers: of the model; replaced in place.
        sharding: of the model's parameters. Those of different layers, and of none, have different labels.
        adder: takes the gradients of the layers.

    Attributes:
        kept: this rank's rows, `[width]` of each bucket. Whoever changes them changes the model.
        outside: trainable parameters that belong to no layer.
    """

    def __init__(self, layers: nn.CellList, sharding: OptimizerSharding, adder: Adder) -> None:
        self.sharding = sharding
        self.kept = sharding.states("weight")
        for bucket, kept in zip(sharding.buckets, self.kept, strict=True):
            ops.assign(kept, bucket.kept([sharding.parameters[index] for index in bucket.indices]))
        inside = [layer.trainable_params() for layer in layers]
        names = {parameter.name for own in inside for parameter in own}
        self.outside = ParameterTuple([p for p in sharding.parameters if p.name not in names])
        for index, own in enumerate(inside):
            _replace(layers, index, _Gathered(layers[index], ParameterTuple(own), self, adder(own)))
        self.release(sharding.parameters)

    def take(self, parameters: Sequence[Parameter]) -> None:
        """Gathers parameters that fill their buckets. Every replica calls this in the same order."""
        by_name = {parameter.name: parameter for parameter in parameters}
        for bucket, kept in zip(self.sharding.buckets, self.kept, strict=True):
            if bucket.names[0] in by_name:
                for name, value in zip(bucket.names, bucket.split(bucket.gather(kept)), strict=True):
                    by_name[name].set_data(value.copy(), slice_shape=True)

    def release(self, parameters: Sequence[Parameter]) -> None:
        """Leaves a single element of each parameter."""
        # Kernels that were started read a parameter where it is when they run.
        synchronize()
        for parameter in parameters:
            parameter.set_data(Tensor(np.zeros((1,) * parameter.ndim, np.float32)), slice_shape=True)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """What is outside the layers is whole within the block."""
        self.take(self.outside)
        try:
            yield
        finally:
            self.release(self.outside)


def _replace(layers: nn.CellList, index: int, cell: nn.Cell) -> None:
    """Puts a cell into a list, which would rename its parameters."""
    names = [(parameter, parameter.name) for parameter in cell.get_parameters()]
    layers[index] = cell
    for parameter, name in names:
        parameter.name = name


class _Gathered(nn.Cell):
    """A decoder layer whose parameters are here while it computes."""

    def __init__(
        self,
        layer: nn.Cell,
        parameters: ParameterTuple,
        home: ParameterSharding,
        add: Callable[[Sequence[Tensor]], None],
    ) -> None:
        super().__init__(auto_prefix=False)
        self.passes = _Passes(layer, parameters, home, add)

    def construct(self, x: Tensor, *rest: Any) -> tuple[Tensor, tuple[()]]:
        """Hidden states; keys and values are not kept, so that nothing can be generated."""
        self.passes.others.rest = rest
        return self.passes(x), ()


class _Others:
    """The further arguments of a layer, none of which has a gradient."""

    rest: tuple[Any, ...] = ()


class _Passes(nn.Cell):
    """Forward and backward of a layer, as a function of its hidden states alone."""

    def __init__(
        self,
        layer: nn.Cell,
        parameters: ParameterTuple,
        home: ParameterSharding,
        add: Callable[[Sequence[Tensor]], None],
    ) -> None:
        super().__init__(auto_prefix=False)
        self.layer, self.parameters_, self.home, self.add = layer, parameters, home, add
        self.others = _Others()
        self.differentiate = ms.value_and_grad(self.weighted, 0, parameters)

    def weighted(self, x: Tensor, dout: Tensor) -> Tensor:
        """A number whose gradients are those of the loss."""
        return (self.layer(x, *self.others.rest)[0] * dout).sum()

    def construct(self, x: Tensor) -> Tensor:
        self.home.take(self.parameters_)
        y = self.layer(x, *self.others.rest)[0]
        self.home.release(self.parameters_)
        return y

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        self.home.take(self.parameters_)
        _, (dx, gradients) = self.differentiate(x, dout)
        self.home.release(self.parameters_)
        self.add(gradients)
        return (dx,)
