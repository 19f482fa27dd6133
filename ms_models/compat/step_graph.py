"""A function as one recorded graph, which later calls run without the detours of MindSpore's own wrapper.

`ms.jit(..., capture_mode="trace")` writes every argument and result into the text of a log that nobody reads. That
takes longer than a small graph runs, and every call waits there for what was computed before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor
from mindspore._c_expression import TraceRecorder
from mindspore.graph import jit_trace
from mindspore.graph.api import _convert_python_data, _pynative_executor
from mindspore.graph.jit_config import _DEFAULT_JIT_CONFIG

from .step_spelling import cpu_spelling

_kept: list[Any] = []
"""Recorded functions. MindSpore names graphs by `id`, so none may be freed and its number used again."""


class RecordedGraph:
    """Recorded by its first call, inside of `step_record.recording`.

    Args:
        function: of tensors; returns a tensor or a tuple of tensors. Later calls must have the same shapes and types.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        _kept.append(function)
        self._function = function
        self._record = ms.jit(function, capture_mode="trace")
        self._graphs: dict[bool, str] = {}
        """MindSpore's names of the graphs, with and without gradient."""

    def __call__(self, *tensors: Tensor) -> Any:
        """What `function(*tensors)` gives."""
        if jit_trace.jit_context():  # part of another recording
            return self._function(*tensors)
        with_gradient = _pynative_executor.requires_grad()
        if with_gradient not in self._graphs:
            known = frozenset(jit_trace._trace_compile_cache)
            with cpu_spelling():
                result = self._record(*tensors)
            (self._graphs[with_gradient],) = jit_trace._trace_compile_cache - known
            return result
        graph = self._graphs[with_gradient]
        return _convert_python_data(TraceRecorder.get_instance().run_graph(graph, _DEFAULT_JIT_CONFIG, tensors))
