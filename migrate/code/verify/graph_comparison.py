"""A function and its gradient, eagerly and as a graph, computed from the same state and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.code.verify.bounds import BOUND, array, bound_of, distance, without_dropout

ROUNDING = 1e-6
"""Of the largest gradient, or result: below this, a difference is the rounding of terms that cancel."""
DIFFER = "compiled and eager differ"


class GraphComparison:
    """Of one function.

    Args:
        candidate: `candidate(parameters, args, kwargs)` gives the result and the gradients, at last by a graph.
        read: `read(args, kwargs)` gives its state, a `step_state.Walk`.
        eager: the same, without a graph.
        status: an object with `refused`, `failed` and `runs`.
        calls: of the candidate, with the same state, until it has a graph.
    """

    def __init__(
        self,
        candidate: Callable[..., Any],
        read: Callable[..., Any],
        eager: Callable[..., Any],
        status: Any,
        calls: int,
    ) -> None:
        self.candidate, self.read, self.eager, self.status, self.calls = candidate, read, eager, status, calls
        self.compared = 0
        self._never: str | None = None
        self.worst = 0.0
        """Largest difference so far, in parts of the norm."""
        self.has_dropout = False
        """Whether random numbers were left out."""

    @property
    def refused(self) -> str | None:
        """Why there is no graph."""
        reason: str | None = self.status.refused
        return reason or self._never

    @property
    def failed(self) -> bool:
        """Whether the compiler failed."""
        return bool(self.status.failed)

    def difference(self, parameters: Sequence[Any], args: Any = (), kwargs: Any = None) -> str | None:
        """What differs, of results, gradients and the tensors that are written; nothing if there is no graph.

        The state is as before afterwards.
        """
        kwargs = kwargs or {}
        state = _Kept(self.read(args, kwargs))
        with without_dropout() as dropout:
            want = (*self.eager(parameters, args, kwargs), state.put_back())
            have, runs = None, self.status.runs
            for _ in range(self.calls):
                if self.refused is None:
                    have = (*self.candidate(parameters, args, kwargs), state.put_back())
        self.has_dropout = self.has_dropout or dropout.calls > 0
        if self.status.runs == runs:
            self._never = "no two calls have the same shapes and settings"
        if self.refused is not None:
            return None
        self.compared += 1
        return self._compared(want, have, [parameter.name for parameter in parameters])

    def _compared(self, want: Any, have: Any, names: list[str]) -> str | None:
        pairs: list[tuple[str, Any, Any, float]] = []
        results = [list(numbers(side[0])) for side in (want, have)]
        if len(results[0]) != len(results[1]):
            return f"{DIFFER}: {len(results[0])} and {len(results[1])} results"
        size = max((_largest(_values(a)[0]) for a in results[0]), default=0.0)
        for number, (a, b) in enumerate(zip(*results, strict=True)):
            # Figures for a log are often differences of larger numbers.
            pairs.append((f"result {number}", a, b, ROUNDING * size if isinstance(a, int | float) else 0.0))
        for number, (a, b) in enumerate(zip(want[2], have[2], strict=True)):
            pairs.append((f"buffer {number}", a, b, 0.0))
        largest = max(map(_largest, map(array, want[1])), default=0.0)
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
            off, norm = distance(x, y)
            if not off <= bound * norm + floor + 1e-12:
                return f"{DIFFER}: {what} by {off:.2g} (norm {norm:.2g})"
            self.worst = max(self.worst, (off - floor) / norm if norm > 0 else 0.0)
        return None


def comparison_of_gradient(
    compiled_step: Any, forward: Callable[..., Any], sources: Sequence[Any], eager: Callable[..., Any]
) -> GraphComparison:
    """Of a function with its gradient; see `CompiledGradient` in the module `compiled_step` for the arguments."""
    gradient = compiled_step.CompiledGradient(forward, sources, eager)
    return GraphComparison(gradient, lambda *arguments: gradient.state.read(arguments), eager, gradient, 2)


def comparison_of_call(decode_step: Any, function: Callable[..., Any]) -> GraphComparison:
    """Of a function alone, without gradients, whatever the process records; see `CompiledCall` in `decode_step`."""
    from mindspore import _no_grad

    call = decode_step.CompiledCall(function)

    def compiled(parameters: Any, args: Any, kwargs: Any) -> Any:
        with _no_grad():
            return call(*args, **kwargs), ()

    def eager(parameters: Any, args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs), ()

    return GraphComparison(compiled, call.read, eager, call, 3)


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


def numbers(value: Any) -> Iterator[Any]:
    """Tensors, arrays and numbers inside of a result."""
    if hasattr(value, "asnumpy") or isinstance(value, np.ndarray | int | float | complex):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from numbers(getattr(value, field.name))


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _values(value: Any) -> tuple[np.ndarray, float]:
    if hasattr(value, "asnumpy"):
        return array(value), bound_of(value)
    return np.asarray(value), BOUND
