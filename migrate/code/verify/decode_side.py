"""Generation steps of a running program: the eager and the compiled result of every call, from the same state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate.code.verify.bounds import array
from migrate.code.verify.graph_comparison import DIFFER, GraphComparison, numbers
from migrate.code.verify.programs import FAILED

if TYPE_CHECKING:
    from migrate.code.verify.step_side import Comparison

Place = tuple[str, int]
MOST = 64
"""Steps that are compared; then the program goes on with the eager ones."""
CHANGING = 8
"""Calls in a row with shapes or settings that were not there before: every step would be another graph."""


class DecodeComparison:
    """All generation steps of a program."""

    def __init__(self, comparison: Comparison, module: Any) -> None:
        self.comparison, self.module = comparison, module
        self.counts: dict[Place, int] = {}
        self._calls: dict[tuple[Place, int, int], Any] = {}

    def decode_step(self, model: Callable[..., Any], compiled: bool = False) -> Callable[..., Any]:
        """In place of `ms_compat.decode_step.decode_step`: the eager call, which is compared on its way."""
        frame = sys._getframe(1)
        place = self.comparison.place(frame.f_code.co_filename, frame.f_lineno)
        if place not in self.comparison.wanted or place in self.comparison.reasons:
            return model
        if self.comparison.distrusted(place, [getattr(model, "__self__", model)]):
            return model
        key = (place, id(getattr(model, "__self__", model)), id(getattr(model, "__func__", None)))
        if key not in self._calls:
            self._calls[key] = self.module.CompiledCall(model)
        call = self._calls[key]

        def compared(*args: Any, **kwargs: Any) -> Any:
            if place in self.comparison.reasons:
                return model(*args, **kwargs)
            if call.graphs.get(tuple(call.read(args, kwargs).key)) is None:
                return self._first(place, call, args, kwargs)
            self._compare(place, call, args, kwargs)
            return model(*args, **kwargs)

        return compared

    def _first(self, place: Place, call: Any, args: Any, kwargs: Any) -> Any:
        """A call with shapes that were not there before, or once: it runs eagerly, and changes what it changes."""
        result = call(*args, **kwargs)
        if call.refused is not None:
            self.comparison.judge(place, self.comparison.relative(call.refused))
        elif call.new_in_a_row >= CHANGING:
            reason = f"every step has other shapes or settings: {call.changing}"
            self.comparison.judge(place, f"{self.comparison.relative(call.place())}: {reason}")
        elif place not in self.counts:
            self.comparison.so_far[place] = "the program took too few steps with the same shapes to compare them"
            self.comparison.write({})
        return result

    def _compare(self, place: Place, call: Any, args: Any, kwargs: Any) -> None:
        """Both results, and what both leave in the buffers; then the state is what it was."""
        self.comparison.write({place: "started"})  # a compiler may end the process
        sides = _Sides(call)
        compared = GraphComparison(sides.compiled, call.read, sides.eager, call, 1)
        different = compared.difference((), args, kwargs)
        if call.refused is not None:
            reason = self.comparison.relative(call.refused)
            self.comparison.judge(place, f"{FAILED}: {reason}" if call.failed else reason)
        elif different or (different := sides.other_tokens()):
            self.comparison.judge(place, different)
        else:
            count = self.counts[place] = self.counts.get(place, 0) + 1
            few = count < self.comparison.job.comparisons
            self.comparison.so_far[place] = f"it was compared {count} times only" if few else None
            self.comparison.write({})
            if count >= MOST:
                self.comparison.judge(place, None)


class _Sides:
    """One call, eagerly and as a graph, and the tokens that follow from its results."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._tokens: dict[str, list[np.ndarray]] = {}

    def eager(self, parameters: Any, args: Any, kwargs: Any) -> Any:
        return self._taken("eager", self.call.function(*args, **kwargs))

    def compiled(self, parameters: Any, args: Any, kwargs: Any) -> Any:
        return self._taken("compiled", self.call(*args, **kwargs))

    def _taken(self, side: str, result: Any) -> Any:
        self._tokens[side] = [_chosen(value) for value in numbers(result) if hasattr(value, "asnumpy")]
        return result, ()

    def other_tokens(self) -> str | None:
        """Where the likeliest token, or a whole number of the result, is another one."""
        pairs = zip(self._tokens["eager"], self._tokens["compiled"], strict=True)
        for number, (a, b) in enumerate(pairs):
            if not np.array_equal(a, b):
                return f"{DIFFER}: result {number} chooses another token"
        return None


def _chosen(tensor: Any) -> np.ndarray:
    """The likeliest of the last axis, whole numbers as they are, nothing of a single figure."""
    values = array(tensor)
    if not tensor.is_floating_point():
        return values
    return np.asarray(values.argmax(-1)) if values.ndim and values.size else np.empty(0)
