"""A function and its gradient, eagerly and as a graph, computed from the same state and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.code.verify.bounds import BOUND, array, bound_of, distance, without_dropout

ROUNDING = 1e-6
"""Of the largest gradient: below this, a difference is the rounding of terms that cancel."""
DIFFER = "compiled and eager differ"


class GraphComparison:
    """Of one function.

    Args:
        compiled_step: the module of that name, of `ms_compat`.
        forward: as in `CompiledGradient`.
        sources: as in `CompiledGradient`.
        eager: as in `CompiledGradient`; without parameters, it gives no gradients.
    """

    def __init__(
        self, compiled_step: Any, forward: Callable[..., Any], sources: Sequence[Any], eager: Callable[..., Any]
    ) -> None:
        self.eager = eager
        self.candidate = compiled_step.CompiledGradient(forward, sources, eager)
        self.worst = 0.0
        """Largest difference so far, in parts of the norm."""
        self.has_dropout = False
        """Whether random numbers were left out."""

    @property
    def refused(self) -> str | None:
        """Why there is no graph."""
        reason: str | None = self.candidate.refused
        return reason

    def difference(self, parameters: Sequence[Any], args: Any = (), kwargs: Any = None) -> str | None:
        """What differs, of results, gradients and the tensors that are written; nothing if there is no graph.

        The state is as before afterwards.
        """
        kwargs = kwargs or {}
        state = _Kept(self.candidate.state.read((args, kwargs)))
        with without_dropout() as dropout:
            want = (*self.eager(parameters, args, kwargs), state.put_back())
            have = None
            for _ in range(2):  # the first call of a key is eager and watched
                if self.refused is None:
                    have = (*self.candidate(parameters, args, kwargs), state.put_back())
        self.has_dropout = self.has_dropout or dropout.calls > 0
        if self.refused is not None:
            return None
        return self._compared(want, have, [parameter.name for parameter in parameters])

    def _compared(self, want: Any, have: Any, names: list[str]) -> str | None:
        pairs: list[tuple[str, Any, Any, float]] = []
        results = [list(_numbers(side[0])) for side in (want, have)]
        if len(results[0]) != len(results[1]):
            return f"{DIFFER}: {len(results[0])} and {len(results[1])} results"
        for number, (a, b) in enumerate(zip(*results, strict=True)):
            pairs.append((f"result {number}", a, b, 0.0))
        for number, (a, b) in enumerate(zip(want[2], have[2], strict=True)):
            pairs.append((f"buffer {number}", a, b, 0.0))
        largest = max((float(np.abs(g).max(initial=0.0)) for g in map(array, want[1])), default=0.0)
        for name, a, b in zip(names, want[1], have[1], strict=True):
            pairs.append((f"the gradient of {name}", a, b, ROUNDING * largest * np.sqrt(a.size)))
        for what, a, b, floor in pairs:
            if a is None or b is None:
                if a is not b:
                    return f"{DIFFER}: {what} is missing"
                continue
            (x, bound), (y, _) = _values(a), _values(b)
            if x.shape != y.shape:
                return f"{DIFFER}: {what} is {list(x.shape)} and {list(y.shape)}"
            off, norm = distance(x, y), float(np.linalg.norm(x.ravel()))
            if not off <= bound * norm + floor + 1e-12:
                return f"{DIFFER}: {what} by {off:.2g} (norm {norm:.2g})"
            self.worst = max(self.worst, (off - floor) / norm if norm > 0 else 0.0)
        return None


class _Kept:
    """The state that a run may change: buffers that it replaces, tensors that it writes into."""

    def __init__(self, walk: Any) -> None:
        self.walk, self.held = walk, walk.held()
        self.tensors = [t for t in walk.tensors if not getattr(t, "requires_grad", False)]
        self.values = [tensor.copy() for tensor in self.tensors]

    def put_back(self) -> list[Any]:
        """Undoes a run; what it left in the places that it changed."""
        now = self.walk.held()
        for (owner, name), value in zip(self.walk.buffers, self.held, strict=True):
            owner[name] = value
        for tensor, value in zip(self.tensors, self.values, strict=True):
            after = array(tensor)
            now.append(after)
            if not np.array_equal(after, array(value), equal_nan=True):
                tensor.copy_(value)
        return list(now)


def _numbers(value: Any) -> Iterator[Any]:
    """Tensors, arrays and numbers inside of a result."""
    if hasattr(value, "asnumpy") or isinstance(value, np.ndarray | int | float | complex):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _numbers(getattr(value, field.name))


def _values(value: Any) -> tuple[np.ndarray, float]:
    if hasattr(value, "asnumpy"):
        return array(value), bound_of(value)
    return np.asarray(value), BOUND
