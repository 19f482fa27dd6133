"""`loss.backward()` for MindSpore: differentiate a forward function and add the gradients to `parameter.grad`.

MindSpore differentiates functions, not losses. The forward part of a training loop becomes a function, `backward_of`
wraps it once, and each call of the result is what `forward; loss.backward()` was: gradients are *added* to the `.grad`
of the parameters, where `zero_grad`, gradient clipping and `optimizer.step` find them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.graph.api import _pynative_executor

from .compiled_step import CompiledGradient


def backward_of(forward: Callable[..., Any], *sources: Any, compiled: bool = False) -> Callable[..., Any]:
    """A function that runs `forward` and adds the gradients of its loss to the trainable parameters of `sources`.

    Args:
        forward: returns the scalar loss, or a tuple that starts with it.
        sources: cells, optimizers, parameters, or containers of these; shared parameters count once.
        compiled: one graph for forward, loss and gradients where that gives the same numbers; see `compiled_step`.

    Returns:
        A function with the arguments and the results of `forward`. It raises RuntimeError for a loss that is no
        scalar, and when no parameter requires a gradient.

    A parameter that the loss does not depend on gets a gradient of zeros, where torch leaves None.
    """
    gradient_of = Gradient(forward)
    run = CompiledGradient(forward, sources, gradient_of) if compiled else gradient_of

    def forward_and_backward(*args: Any, **kwargs: Any) -> Any:
        parameters = trainable(sources)
        if not parameters:
            raise RuntimeError("backward found no parameter that requires a gradient")
        recording = _pynative_executor.grad_flag()
        result, gradients = run(parameters, args, kwargs)
        _pynative_executor.set_grad_flag(recording)  # which `tape` switches on, and a gradient function off
        for parameter, gradient in zip(parameters, gradients, strict=True):
            held = getattr(parameter, "grad", None)
            gradient = gradient if held is None else held + gradient
            finish = getattr(parameter, "after_backward", None)  # data parallel training averages over the ranks here
            parameter.grad = gradient if finish is None else finish(gradient)
        return result

    return forward_and_backward


class Gradient:
    """A function and the gradient of its loss, eagerly: operation by operation."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._rest: Any = None
        self._key: tuple[int, ...] = ()
        self._function: Callable[..., Any] | None = None

    def __call__(self, parameters: list[ms.Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`(result of forward, gradients of the parameters)`."""
        # Parameters may be frozen or thawed between steps; the gradient function is made anew only then.
        key = tuple(map(id, parameters))
        if self._function is None or key != self._key:
            self._key, self._function = key, ms.value_and_grad(self._loss_alone, None, parameters)
        try:
            loss, gradients = self._function(*args, **kwargs)
        except Exception:
            _pynative_executor.clear_res()  # or the next gradient is taken for the gradient of this one, left open
            raise
        rest, self._rest = self._rest, None
        return loss if rest is None else (loss, *rest), gradients

    def _loss_alone(self, *args: Any, **kwargs: Any) -> ms.Tensor:
        result = self._forward(*args, **kwargs)
        loss, self._rest = (result[0], result[1:]) if isinstance(result, tuple) else (result, None)
        if loss.ndim and loss.numel() != 1:
            raise RuntimeError(f"backward needs a scalar loss, not one of shape {loss.shape}")
        return loss


def trainable(sources: Iterable[Any]) -> list[ms.Parameter]:
    """The parameters of cells, optimizers and containers that require a gradient, each once, in order."""
    unique = {id(parameter): parameter for parameter in _parameters(sources) if parameter.requires_grad}
    return list(unique.values())


def _parameters(source: Any) -> Iterator[ms.Parameter]:
    if isinstance(source, ms.Parameter):
        yield source
    elif isinstance(source, nn.Cell):
        yield from source.get_parameters()
    elif hasattr(source, "param_groups"):
        for group in source.param_groups:
            yield from group["params"]
    elif isinstance(source, dict):
        yield from _parameters(source.values())
    elif isinstance(source, Iterable) and not isinstance(source, str | ms.Tensor):
        for item in source:
            yield from _parameters(item)
