"""`decode_step(model, compiled=True)(tokens, ...)`: a model's call in a loop of generation, as a graph.

Shapes are the same at every step where keys and values stand in buffers of fixed size, or the model sees a window of
fixed length. A call with new shapes, modes or settings runs eagerly; the second such call is watched for what a graph
could not repeat, the third records one, and those that follow run it. So prefill and decoding have a graph each, and a
sequence that grows has none. Tensors that the model writes into are results of the graph, written when it has run.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.graph import jit_trace
from mindspore.graph.api import _pynative_executor

from .compiled_step import LIMIT, flatten, rebuild
from .step_effects import Unrecordable, effects
from .step_graph import RecordedGraph
from .step_record import own_names, recorded_part, recording
from .step_state import StepState, Walk, checksums, put_back_on_failure
from .step_watch import watching

MANY = 32
"""Calls in a row with shapes or settings that were never seen before: then this is said, once."""
_REMEMBERED = 256
"""Keys that were seen once; older ones are forgotten."""

_steps: dict[tuple[int, int], CompiledCall] = {}
"""By model; a loop asks again at every step, and a graph keeps its model anyway."""


def decode_step(model: Callable[..., Any], compiled: bool = False) -> Callable[..., Any]:
    """What to call in place of `model`.

    Args:
        model: a cell, or a method of one.
        compiled: one graph for each set of shapes, where no gradient is recorded; otherwise this gives `model` itself.
    """
    if not compiled:
        return model
    key = (id(getattr(model, "__self__", model)), id(getattr(model, "__func__", None)))
    if key not in _steps:
        _steps[key] = CompiledCall(model)
    return _steps[key]


def is_recorded() -> bool:
    """Whether the operations of this moment get gradients."""
    return bool(_pynative_executor.grad_flag() and _pynative_executor.enable_grad())


class CompiledCall:
    """A function without gradient, compiled for each key of its state and arguments."""

    what = "the generation step"

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.signature = inspect.signature(getattr(function, "construct", function))
        self.state = StepState([], [function]) if isinstance(function, ms.nn.Cell) else StepState([function], [])
        self.refused: str | None = None
        """Why no graph is made, with file and line."""
        self.failed = False
        """Whether the compiler failed; afterwards, this process may not be fit for other graphs."""
        self.graphs: dict[tuple[Any, ...], _Graph | set[int] | None] = {}
        """By key. None: seen once. Numbers of the tensors that it writes into: watched, and nothing found."""
        self.runs = 0
        """Results that a graph gave."""
        self.new_in_a_row = 0
        self.changing = ""
        """What differed in the last call whose key was new, from the call before."""
        self._last: tuple[Any, ...] = ()
        self._said: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.refused is not None or not self.is_its_call() or jit_trace._using_trace:
            return self.function(*args, **kwargs)
        state = self.read(args, kwargs)
        key, last = tuple(state.key), self._last
        self._last = key
        if key not in self.graphs:
            return self._seen(key, last, args, kwargs)
        self.new_in_a_row = 0
        graph = self.graphs[key]
        if graph is None:
            return self._watched(key, state, args, kwargs)
        if isinstance(graph, set):
            if sum(isinstance(made, _Graph) for made in self.graphs.values()) >= LIMIT:
                self._say(f"after {LIMIT} graphs, new ones run eagerly: its arguments or settings keep changing")
                return self.function(*args, **kwargs)
            try:
                with put_back_on_failure(state, graph):
                    self.graphs[key] = made = _Graph(self, state, graph, args, kwargs)
                    return self._run(made, state)
            except Unrecordable as error:
                self._refuse(str(error))
                return self.function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (whatever the compiler cannot do runs eagerly, and is said)
                self.failed = True
                self._refuse(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
                return self.function(*args, **kwargs)
        return self._run(graph, state)

    def _run(self, graph: _Graph, state: Walk) -> Any:
        result = graph(state)
        self.runs += 1
        return result

    def is_its_call(self) -> bool:
        """Whether a call at this moment may be a graph."""
        return not is_recorded()

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Walk:
        """The state at this moment, with the arguments by name."""
        return self.state.read(self.signature.bind(*args, **kwargs).arguments)

    def _seen(self, key: tuple[Any, ...], last: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        self.graphs[key] = None
        self.new_in_a_row += 1
        if last:
            self.changing = difference(last, key)
        if self.new_in_a_row == MANY:
            self._say(f"every call runs eagerly as long as it differs from those before: {self.changing}")
        once = [key for key, graph in self.graphs.items() if graph is None]
        if len(once) > _REMEMBERED:
            del self.graphs[once[0]]
        return self.function(*args, **kwargs)

    def _watched(self, key: tuple[Any, ...], state: Walk, args: Any, kwargs: Any) -> Any:
        before = checksums(state.tensors)
        places, held = [(id(place), name) for place, name in state.buffers], state.held()
        with watching() as found:
            result = self.function(*args, **kwargs)
        after = self.read(args, kwargs)
        buffers = set(map(id, held))
        moved = any(a is not b and id(a) not in buffers for a, b in zip(state.tensors, after.tensors, strict=False))
        if found:
            self._refuse(found[0])
        elif tuple(after.key) != key:
            self._refuse(f"{self.place()}: it changes what it reads: {difference(key, tuple(after.key))}")
        elif moved or places != [(id(place), name) for place, name in after.buffers]:
            self._refuse(f"{self.place()}: it puts other tensors in the place of those that it reads")
        else:
            pairs = zip(before, checksums(state.tensors), strict=True)
            self.graphs[key] = {number for number, (old, new) in enumerate(pairs) if old != new}
        return result

    def place(self) -> str:
        """`file:line` of what is called."""
        code = inspect.unwrap(getattr(self.function, "construct", self.function)).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        self.graphs.clear()
        self._say(f"stays eager: {reason}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(f"{self.what} {self.place()}: {text}", stacklevel=4)


class _Graph:
    """One recorded call."""

    def __init__(self, call: CompiledCall, state: Walk, written: set[int], args: Any, kwargs: Any) -> None:
        self._structure: Any = None
        self._inputs: list[int | None] = []
        """Of each tensor of the result its number among the inputs, if it is one of them."""
        self._replaced: list[int] = []
        """Numbers of the buffers in whose place the call puts others."""
        self._written: list[int] = []
        """Numbers of the inputs that the call writes into."""
        before, tensors = state.held(), state.tensors
        numbers = {id(tensor): number for number, tensor in enumerate(tensors)}

        def recorded(*_: Tensor) -> Any:
            # The inputs are the very objects that the function finds in its arguments and in the model.
            leaves: list[Tensor] = []
            with recorded_part(), effects(tensors) as writes:
                self._structure = flatten(call.function(*args, **kwargs), leaves)
                after = state.held()
                self._inputs = [numbers.get(id(leaf)) for leaf in leaves]
                self._replaced = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old is not new]
                self._written = list(writes.numbers)
                if not written <= writes.numbers.keys():
                    raise Unrecordable(f"{call.place()}: it writes into a tensor in a way that cannot be recorded")
                leaves += [after[i] for i in self._replaced]
                leaves += [tensors[i] for i in self._written]
            if not leaves:
                raise Unrecordable(f"{call.place()}: it gives no tensor")
            return tuple(leaves) if len(leaves) > 1 else leaves[0]

        self._run = RecordedGraph(recorded)
        self._is_compiled = False

    def __call__(self, state: Walk) -> Any:
        tensors = state.tensors
        with recording(), contextlib.nullcontext() if self._is_compiled else own_names(tensors):
            found = self._run(*tensors)
        self._is_compiled = True
        leaves = iter(found if isinstance(found, tuple) else (found,))
        results = [next(leaves) for _ in self._inputs]
        for number in self._replaced:
            place, name = state.buffers[number]
            place[name] = ops.stop_gradient(next(leaves))
        for number in self._written:
            tensors[number].copy_(ops.stop_gradient(next(leaves)))
        return rebuild(
            self._structure, iter([r if n is None else tensors[n] for n, r in zip(self._inputs, results, strict=True)])
        )


def difference(old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    """The first difference of two keys, with the attribute or argument that it belongs to."""
    name = "the state"
    for before, now in zip(old, new, strict=False):
        if before != now:
            return f"{name} was {_described(before)}, then {_described(now)}"
        if isinstance(before, str):
            name = before
    return f"{name} has more or fewer items"


def _described(entry: Any) -> str:
    if isinstance(entry, tuple) and len(entry) == 4:
        return f"a tensor of shape {entry[1]}"
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], type):
        return f"{entry[1]} items" if entry[0] in (list, tuple, dict) else str(entry[1])
    return "something else"
