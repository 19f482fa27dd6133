"""Averages of a model's weights over training, with torch's arithmetic (`torch.optim.swa_utils`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from .batch_layers import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .module import Module

Average = Callable[[Tensor, Tensor, Any], Tensor]
MultiAverage = Callable[[Sequence[Parameter], Sequence[Parameter], Any], None]


class AveragedModel(Module):
    """A copy of a model whose parameters are averages over the calls of `update_parameters`.

    Args:
        model: is copied.
        avg_fn: the new average from (average, parameter, number averaged); an equal-weight average without one.
        multi_avg_fn: writes new averages into a list of parameters, given (averages, parameters, number averaged).
        use_buffers: average the buffers too, instead of copying the newest.
    """

    def __init__(
        self,
        model: nn.Cell,
        avg_fn: Average | None = None,
        multi_avg_fn: MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        if use_buffers and multi_avg_fn is not None:
            raise ValueError("use_buffers with multi_avg_fn is not written: use avg_fn")
        self.module = copy.deepcopy(model)
        self.register_buffer("n_averaged", Tensor(0, ms.int64))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: nn.Cell) -> None:
        """Take the parameters of `model` into the averages; the first time, they are copied."""
        count: Tensor = self._buffers["n_averaged"]
        first = int(count.asnumpy()) == 0
        average = self.avg_fn or get_swa_avg_fn()
        pairs = list(zip(self.module.get_parameters(), model.get_parameters(), strict=True))
        if not first and self.multi_avg_fn is not None:
            for kind in dict.fromkeys(str(mean.dtype) for mean, _ in pairs):  # like tensors together, as in torch
                means, values = zip(*[pair for pair in pairs if str(pair[0].dtype) == kind], strict=True)
                self.multi_avg_fn(list(means), list(values), count)
        else:
            for mean, value in pairs:
                ops.assign(mean, value if first else average(mean, value, count).astype(mean.dtype))
        for own, other in zip(self.module.cells_and_names(), model.cells_and_names(), strict=True):
            buffers = own[1]._buffers
            for name, new in other[1]._buffers.items():
                if new is not None:
                    mixed = self.use_buffers and not first
                    result = average(buffers[name], new, count) if mixed else new
                    buffers[name] = result.astype(new.dtype).copy()
        self.n_averaged = count + 1


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """An exponential average: `decay * average + (1 - decay) * parameter`.

    Raises:
        ValueError: a decay outside [0, 1].
    """
    _check(decay)
    return lambda mean, value, number: decay * mean + (1 - decay) * value


def get_swa_avg_fn() -> Average:
    """The average of all, with equal weights."""
    return lambda mean, value, number: mean + (value - mean) / (number + 1)


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """An exponential average of many parameters at once.

    Raises:
        ValueError: a decay outside [0, 1].
    """
    _check(decay)

    def update(means: Sequence[Parameter], values: Sequence[Parameter], number: Any) -> None:
        for mean, value in zip(means, values, strict=True):
            ops.assign(mean, mean + (value - mean) * (1 - decay))

    return update


def get_swa_multi_avg_fn() -> MultiAverage:
    """The average of all, with equal weights, of many parameters at once."""

    def update(means: Sequence[Parameter], values: Sequence[Parameter], number: Any) -> None:
        for mean, value in zip(means, values, strict=True):
            ops.assign(mean, (mean + (value - mean) / (number + 1)).astype(mean.dtype))

    return update


def update_bn(loader: Iterable[Any], model: nn.Cell) -> None:
    """Compute the running statistics of all batch normalisations anew, as averages over the batches of `loader`.

    A batch is the input of the model, or a list or tuple that starts with it.
    """
    layers = [c for _, c in model.cells_and_names() if isinstance(c, BatchNorm1d | BatchNorm2d | BatchNorm3d)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    was_training = model.training
    model.set_train(True)
    for layer in layers:
        layer.momentum = None
        if layer.track_running_stats:
            layer.running_mean = ops.zeros_like(layer.running_mean)
            layer.running_var = ops.ones_like(layer.running_var)
            layer.num_batches_tracked = Tensor(0, ms.int64)
    for batch in loader:
        model(batch[0] if isinstance(batch, list | tuple) else batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.set_train(was_training)


def _check(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
