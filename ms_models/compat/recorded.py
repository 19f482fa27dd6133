"""Calls over many tensors, clipping and updates, as one graph each: launching every operation costs more than its work.

Off until `backward_of(..., compiled=True)` has made a graph, so that a program is compiled as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor
from mindspore.graph import jit_trace
from mindspore.graph.api import _pynative_executor

from .step_graph import RecordedGraph
from .step_record import recording

LIMIT = 8
_is_on = False


def switch_on() -> None:
    """From now on, calls are recorded."""
    global _is_on
    _is_on = True


def is_on() -> bool:
    """Whether calls are recorded."""
    return _is_on


class Recorded:
    """Graphs of a function by key."""

    def __init__(self) -> None:
        self.graphs: dict[Any, Callable[..., Any] | None] = {}

    def __call__(self, key: Any, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """`function(*tensors)`, which may also write to the tensors: recorded at the second call of a key, then run.

        Args:
            key: everything besides the tensors' values that the function depends on.
            function: returns a tensor or a tuple of tensors.
            tensors: all that it reads and writes.
        """
        key = (key, tuple((t.shape, t.dtype) for t in tensors), _pynative_executor.requires_grad())
        if key not in self.graphs:
            if len(self.graphs) < LIMIT:
                self.graphs[key] = None
            return function(*tensors)
        graph = self.graphs[key]
        if graph is None:

            def recorded_call(*tensors: Tensor) -> Any:  # no method of a tensor is named so
                return function(*tensors)

            graph = RecordedGraph(recorded_call)
            jit_trace._set_compile_only(True)  # while it is recorded it runs, and once is enough
            try:
                with recording():
                    result = graph(*tensors)
            finally:
                jit_trace._set_compile_only(False)
            self.graphs[key] = graph  # one that failed would be taken for a known one
            return result
        with recording():
            return graph(*tensors)
