"""Generation steps of a running program: the eager and the compiled result of every call, from the same state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate.code.verify.bounds import array, bound_of, distance, without_dropout
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
        from mindspore import Parameter

        self.comparison.write({place: "started"})  # a compiler may end the process
        state = call.read(args, kwargs)
        tensors = [t for t in state.tensors if not (isinstance(t, Parameter) and t.requires_grad)]
        kept, held = [t.copy() for t in tensors], state.held()

        def taken(result: Any) -> list[Any]:
            """The result and the state behind it, which is put back."""
            leaves: list[Any] = []
            self.module.flatten(result, leaves)
            leaves = [leaf.copy() for leaf in [*leaves, *tensors, *state.held()] if leaf is not None]
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)
            for (owner, name), value in zip(state.buffers, held, strict=True):
                owner[name] = value
            return leaves

        with without_dropout():
            want = taken(call.function(*args, **kwargs))
            have = taken(call(*args, **kwargs))
        if call.refused is not None:
            reason = self.comparison.relative(call.refused)
            self.comparison.judge(place, f"{FAILED}: {reason}" if call.failed else reason)
        elif different := _difference(want, have):
            self.comparison.judge(place, different)
        else:
            count = self.counts[place] = self.counts.get(place, 0) + 1
            few = count < self.comparison.job.comparisons
            self.comparison.so_far[place] = f"it was compared {count} times only" if few else None
            self.comparison.write({})
            if count >= MOST:
                self.comparison.judge(place, None)


def _difference(want: list[Any], have: list[Any]) -> str | None:
    """Logits within the bound and with the same choice; tokens and other whole numbers are the same."""
    if len(want) != len(have):
        return f"compiled and eager differ: {len(have)} results, not {len(want)}"
    for number, (a, b) in enumerate(zip(want, have, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"compiled and eager differ: result {number} is {b.dtype}{b.shape}, not {a.dtype}{a.shape}"
        x, y = array(a), array(b)
        if not a.is_floating_point():
            if not np.array_equal(x, y):
                return f"compiled and eager differ: result {number} in {int((x != y).sum())} whole numbers"
            continue
        off, size = distance(x, y), float(np.linalg.norm(x.ravel()))
        if not off <= bound_of(a) * size + 1e-12:
            return f"compiled and eager differ: result {number} by {off:.2g} (norm {size:.2g})"
        if x.ndim and x.size and not np.array_equal(x.argmax(-1), y.argmax(-1)):
            return f"compiled and eager differ: result {number} chooses another token"
    return None
