"""`backward_of(..., compiled=True)`: forward, loss and gradients as one graph, where Python would run them again.

A call with new shapes, modes or settings runs eagerly once, watched by `step_watch`; the next such call records the
operations of the forward function (`mindspore.jit`, capture mode trace) and compiles them with their gradient. What a
graph could not repeat makes the function stay eager, with one warning that names the line. So does a function that
wants ever new graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from .cpu_threads import limit_kernel_threads
from .recorded import switch_on
from .step_effects import Deferred, Unrecordable, effects
from .step_graph import RecordedGraph
from .step_record import own_names, recorded_part, recording
from .step_state import StepState, Walk, checksums, put_back_on_failure
from .step_watch import program_line, watching

LIMIT = 8
"""Graphs of one function: shapes, modes and settings together."""


class CompiledGradient:
    """A function and the gradient of its loss, compiled for each key of its state and arguments.

    Args:
        forward: returns a scalar loss, or a tuple that starts with it.
        sources: what the gradients belong to; its state is watched along with the function's own.
        eager: `eager(parameters, args, kwargs)` gives what a call gives, without a graph.
    """

    def __init__(self, forward: Callable[..., Any], sources: Sequence[Any], eager: Callable[..., Any]) -> None:
        limit_kernel_threads()
        self.forward, self._eager = forward, eager
        self.state = StepState([forward], list(sources))
        self.refused: str | None = None
        """Why no graph is made, with file and line."""
        self.failed = False
        """Whether the compiler failed; afterwards, this process may not be fit for other graphs."""
        self.graphs: dict[tuple[Any, ...], _Graph | _Seen] = {}
        """By key; first what the eager run showed that found nothing against a graph."""
        self.runs = 0
        """Results that a graph gave."""
        self._is_full = False

    def __call__(self, parameters: list[Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`(result of forward, gradients of the parameters)`."""
        if self.refused is not None:
            return self._eager(parameters, args, kwargs)
        state = self.state.read((args, kwargs))
        key = (*state.key, tuple(map(id, parameters)))
        if key not in self.graphs:
            return self._first(key, state, parameters, args, kwargs)
        graph = self.graphs[key]
        if isinstance(graph, _Seen):
            if self._full():
                return self._eager(parameters, args, kwargs)
            try:
                with put_back_on_failure(state, graph.written):
                    graph = _Graph(self.forward, self._place(), parameters, state, args, kwargs, graph)
                    self.graphs[key] = graph
                    result = self._run(graph, state)
                switch_on()
                return result
            except Unrecordable as error:
                self._refuse(str(error))
                return self._eager(parameters, args, kwargs)
            except Exception as error:  # noqa: BLE001  (whatever the compiler cannot do runs eagerly, and is said)
                self.failed = True
                self._refuse(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
                return self._eager(parameters, args, kwargs)
        return self._run(graph, state)

    def _run(self, graph: _Graph, state: Walk) -> Any:
        result = graph(state)
        self.runs += 1
        return result

    def _first(
        self,
        key: tuple[Any, ...],
        state: Walk,
        parameters: list[Parameter],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        places = [(id(place), name) for place, name in state.buffers]
        buffers = set(map(id, state.held()))
        contents = checksums(state.tensors)
        with watching() as found:
            result = self._eager(parameters, args, kwargs)
        after = self.state.read((args, kwargs))
        moved = {id(old) for old, new in zip(state.tensors, after.tensors, strict=False) if old is not new} - buffers
        same_places = places == [(id(place), name) for place, name in after.buffers]
        if found:
            self._refuse(found[0])
        elif after.key != state.key or moved or not same_places:
            self._refuse(f"{self._place()}: it changes attributes or containers that it reads")
        elif len(self.graphs) < 8 * LIMIT:
            pairs = zip(contents, checksums(state.tensors), strict=True)
            self.graphs[key] = _Seen(frozenset(n for n, (old, new) in enumerate(pairs) if old != new))
        else:
            self._full(all_keys=True)
        return result

    def _place(self) -> str:
        code = getattr(self.forward, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else program_line()

    def _full(self, all_keys: bool = False) -> bool:
        made = sum(isinstance(graph, _Graph) for graph in self.graphs.values())
        if made < LIMIT and not all_keys:
            return False
        if not self._is_full:
            self._is_full = True
            warnings.warn(
                f"{self._place()}: its arguments or settings keep changing; after {made} graphs, new ones run eagerly",
                stacklevel=4,
            )
        return True

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        self.graphs.clear()
        warnings.warn(f"the step at {self._place()} stays eager: {reason}", stacklevel=5)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """An eager run."""

    written: frozenset[int]
    """Numbers of the tensors of its state that it wrote into."""


class _Graph:
    """One recorded run."""

    def __init__(
        self,
        forward: Callable[..., Any],
        place: str,
        parameters: list[Parameter],
        state: Walk,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seen: _Seen,
    ) -> None:
        structure: list[Any] = []
        replaced: list[int] = []
        written: list[int] = []
        before, tensors = state.held(), state.tensors

        def recorded(*_: Tensor) -> Any:
            # The inputs are the very objects that `forward` finds in its arguments, its closure and the modules.
            leaves: list[Tensor] = []
            with recorded_part(tensors), effects(tensors) as writes:
                structure[:] = [flatten(forward(*args, **kwargs), leaves)]
                after = state.held()
                replaced[:] = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old is not new]
                written[:] = writes.numbers
                if not seen.written <= writes.numbers.keys():
                    raise Unrecordable(f"{place}: it writes into a tensor in a way that cannot be recorded")
                leaves += [after[i] for i in replaced]
                leaves += [tensors[i] for i in written]
                loss = ms.ops.stop_gradient(leaves[0])  # `has_aux` wants more than the loss
            return (*leaves, loss)

        self._structure, self._replaced, self._written = structure, replaced, written
        self._tensors = tensors
        graph = RecordedGraph(recorded)
        # They are no arguments of what is differentiated: a buffer would take part in a gradient from then on, and
        # could not be written any more.
        self._gradient = ms.value_and_grad(lambda: graph(*self._tensors), None, parameters, has_aux=True)
        self._is_compiled = False

    def __call__(self, state: Walk) -> Any:
        self._tensors = state.tensors
        with recording(), contextlib.nullcontext() if self._is_compiled else own_names(self._tensors):
            found, gradients = self._gradient()
        self._is_compiled = True
        leaves = iter(found)
        result = rebuild(self._structure[0], leaves)
        for number in self._replaced:
            place, name = state.buffers[number]
            place[name] = ms.ops.stop_gradient(next(leaves))
        tensors = state.tensors
        for number in self._written:
            tensors[number].copy_(ms.ops.stop_gradient(next(leaves)))
        return result, gradients


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """Place of a tensor in a result."""

    reads: tuple[str, ...] = ()
    """What is read from it on the host."""


def flatten(value: Any, leaves: list[Tensor]) -> Any:
    """The same value with `_Leaf` for tensors, which go to `leaves`."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return _Leaf()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(flatten(item, leaves) for item in value))
    if type(value) in (tuple, list):
        return type(value)(flatten(item, leaves) for item in value)
    if type(value) is dict:
        return {key: flatten(item, leaves) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return _Fields(value, {name: flatten(getattr(value, name), leaves) for name in names})
    if isinstance(value, Deferred):
        leaves.append(value.tensor)
        return _Leaf(value.reads)
    if isinstance(value, int | float | str | bool | type(None) | np.ndarray | np.generic):
        return value
    raise Unrecordable(f"{program_line()}: a result of type {type(value).__name__} cannot leave a graph")


@dataclasses.dataclass(frozen=True)
class _Fields:
    """A dataclass, with its fields flattened."""

    value: Any
    fields: dict[str, Any]


def rebuild(structure: Any, leaves: Iterator[Tensor]) -> Any:
    """The inverse of `flatten`."""
    if isinstance(structure, _Leaf):
        value = next(leaves)
        for read in structure.reads:
            value = getattr(value, read)()
        return value
    if isinstance(structure, _Fields):
        return dataclasses.replace(
            structure.value, **{name: rebuild(item, leaves) for name, item in structure.fields.items()}
        )
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*(rebuild(item, leaves) for item in structure))
    if isinstance(structure, tuple | list):
        return type(structure)(rebuild(item, leaves) for item in structure)
    if isinstance(structure, dict):
        return {key: rebuild(item, leaves) for key, item in structure.items()}
    return structure
