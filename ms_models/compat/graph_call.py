"""`as_graph(model)(...)`: a model's call as a graph in the middle of operations whose gradients `tape` goes through.

For training steps that no single function computes: two losses that share a forward pass, two optimizers. Forward and
backward pass of the model are one graph each, what surrounds them runs operation by operation. New shapes, modes or
settings run eagerly twice, as in `decode_step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .decode_step import CompiledCall, is_recorded
from .step_state import Walk

_calls: dict[int, RecordedCall] = {}
"""By model; a loop asks again at every step, and a graph keeps its model anyway."""


def as_graph(model: Callable[..., Any]) -> RecordedCall:
    """What to call in place of `model`, a cell, where gradients are recorded; elsewhere it calls the model itself."""
    if id(model) not in _calls:
        _calls[id(model)] = RecordedCall(model)
    return _calls[id(model)]


class RecordedCall(CompiledCall):
    """A function whose result is differentiated later, compiled for each key of its state and arguments."""

    what = "the call of"

    def is_its_call(self) -> bool:
        """Whether gradients are recorded."""
        return is_recorded()

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Walk:
        """The state, with which of its tensors get gradients."""
        state = super().read(args, kwargs)
        state.key.append(tuple(tensor._requires_grad for tensor in state.tensors))
        return state
