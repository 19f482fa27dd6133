"""`loss.backward()` over what has run: for losses whose computation cannot be put into one function.

Importing this file switches the recording of operations on, as it always is in torch; inside of `no_grad` nothing is
recorded. `backward` goes through the operations that led to a tensor and adds the gradients to the `.grad` of the
parameters, which is exact for branches, losses that share a forward pass, and graphs that are gone through twice.

A gradient function made once (`backward.backward_of`) is faster and can be compiled; use it where it is possible.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from mindspore import Parameter, Tensor, ops
from mindspore._c_expression import run_backward
from mindspore.graph.api import _pynative_executor


def record() -> None:
    """Switch the recording on again: MindSpore's own gradient functions (`ms.grad`) leave it off."""
    _pynative_executor.set_grad_flag(True)


record()
_parameters: WeakValueDictionary[int, Parameter] = WeakValueDictionary()
"""Parameters that took part in a backward pass, by the number of their node."""


def backward(
    loss: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Iterable[Tensor] | None = None,
) -> None:
    """Adds the gradients of a loss to the `.grad` of the parameters it depends on, or of `inputs` alone.

    Args:
        loss: a scalar, unless `gradient` gives the weights of its elements.
        gradient: the gradient that arrives at `loss`; 1 for a scalar.
        retain_graph: keep what the operations saved, for another backward pass through them.
        create_graph: record the backward pass too; this keeps the graph as well.
        inputs: parameters.

    Raises:
        RuntimeError: nothing that requires a gradient led to the loss while recording was on; a loss that is no
            scalar without `gradient`; a second pass through a graph that was not retained.
    """
    if not loss._requires_grad:
        raise RuntimeError("the loss does not depend on a parameter that requires a gradient, or was not recorded")
    if gradient is None:
        if loss.numel() != 1:
            raise RuntimeError(f"backward needs a scalar loss, not one of shape {loss.shape}")
        gradient = ops.ones_like(loss)
    if inputs is None:
        parameters = _leaves(loss)
    else:
        parameters = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    keep = create_graph if retain_graph is None else retain_graph
    found = run_backward((loss,), (gradient,), keep, create_graph, tuple(parameters), True, accumulate_grad=False)
    record()
    for parameter, value in zip(parameters, found, strict=True):
        if value is None:
            continue
        held = getattr(parameter, "grad", None)
        value = value if held is None else held + value
        finish = getattr(parameter, "after_backward", None)  # data parallel training averages over the ranks here
        parameter.grad = value if finish is None else finish(value)


def _leaves(loss: Tensor) -> list[Parameter]:
    """The parameters at the ends of the graph of a loss."""
    numbers = list(dict.fromkeys(node._unique_id() for node in _nodes(loss._grad_node) if node.is_leaf()))
    if not all(_is_current(number) for number in numbers):
        for item in gc.get_objects():
            if issubclass(type(item), Parameter) and item.requires_grad and item._grad_node is not None:
                _parameters[item._grad_node._unique_id()] = item
    return [_parameters[number] for number in numbers]


def _is_current(number: int) -> bool:
    """Numbers are used again when a node is gone."""
    parameter = _parameters.get(number)
    return parameter is not None and parameter._grad_node is not None and parameter._grad_node._unique_id() == number


def _nodes(start: Any) -> Iterator[Any]:
    seen, waiting = set(), [start]
    while waiting:
        node = waiting.pop()
        if node is None or node._unique_id() in seen:
            continue
        seen.add(node._unique_id())
        yield node
        waiting += [entry[0] if isinstance(entry, tuple) else entry for entry in node.next_functions]
