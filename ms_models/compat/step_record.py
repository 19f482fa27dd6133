"""Recording of operations for a graph (`mindspore.jit`, capture mode trace), around what MindSpore 2.10 gets wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops
from mindspore._c_expression import TraceRecorder
from mindspore.graph import jit_trace
from mindspore.graph.api import _pynative_executor

from .step_effects import Unrecordable
from .step_watch import program_line

_SHAPED_BY_VALUES = frozenset(
    {"NonZero", "NonZeroExt", "MaskedSelect", "Unique", "Unique2", "UniqueDim", "UniqueConsecutive", "UniqueWithPad"}
)


class _Recorder(jit_trace.TraceJitContext):
    """Takes note of every operation that runs."""

    def __init__(self) -> None:
        super().__init__()
        self._without_gradient: list[Tensor] = []
        """Computed inside of `no_grad`, which a graph does not know."""
        self._parts: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        """Complex numbers and their parts, by the name of the part and `id`."""

    def args_preprocess(self, prim_name: str, prim_res: Any, *args: Any) -> Any:
        self.stop_gradients()
        if not _pynative_executor.enable_grad():
            self._without_gradient += _tensors(prim_res)
        if prim_name in _SHAPED_BY_VALUES:
            raise Unrecordable(f"{program_line()}: {prim_name} gives a shape that depends on values")
        # MindSpore's own looks at the whole stack for each operation: most of the time of recording, and a failure
        # where a frame has no source, as under `python -m`.
        args = tuple(jit_trace._convert_arg_for_operators(arg, prim_name) for arg in args)
        return prim_res, [__file__], [1], args

    def run_op(self, prim: Any, prim_res: Any, *args: Any) -> Any:
        if not _holds_tensor(prim_res):
            return prim_res  # the answer to a question about types or shapes: no value of the graph
        if prim.name == "Stack":  # its gradient needs the number of tensors, which only the other capture mode sets
            prim = ops.Stack(prim.axis)
            prim.add_prim_attr("num", len(args[0]))
        if prim.name in ("Real", "Imag"):
            return self._part(prim, prim_res, args[0])
        # Not MindSpore's own, whose words for a log read every tensor back.
        prim_res, files, lines, args = self.args_preprocess(prim.name, prim_res, *args)
        TraceRecorder.get_instance().new_node(prim, (prim_res, files, lines, False), *args)
        return prim_res

    def prepare_op(self, prim_name: str, prim_res: Any, *args: Any) -> Any:
        return self.args_preprocess(prim_name, prim_res, *args)

    def stop_gradients(self) -> None:
        """Behind a `no_grad`: what was computed inside is a constant for all that follows."""
        if self._without_gradient and _pynative_executor.enable_grad():
            made, self._without_gradient = self._without_gradient, []
            for tensor in made:
                self.pass_trace_node(ops.stop_gradient(tensor), tensor)

    def _part(self, prim: Any, prim_res: Tensor, number: Tensor) -> Tensor:
        """One node for each part of a complex number: the compiler fails to add up more than two complex gradients."""
        known = self._parts.get((prim.name, id(number)))
        if known is not None:
            self.pass_trace_node(known[1], prim_res)
            return prim_res
        _, files, lines, args = self.args_preprocess(prim.name, prim_res, number)
        TraceRecorder.get_instance().new_node(prim, (prim_res, files, lines, False), *args)
        self._parts[prim.name, id(number)] = number, prim_res
        return prim_res

    def forget(self) -> None:
        """Of a recording that has ended."""
        self._without_gradient, self._parts = [], {}


def _holds_tensor(value: Any) -> bool:
    return bool(_tensors(value))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, tuple | list) else []


_recorder = _Recorder()


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Functions jitted with capture mode trace are recorded, or run, inside."""
    own, lines = jit_trace._trace_jit_context, jit_trace._get_caller_lines
    jit_trace._trace_jit_context = _recorder
    jit_trace._get_caller_lines = lambda: ([__file__], [1])
    try:
        yield
    except BaseException:
        _pynative_executor.clear_res()  # or the next gradient would be taken for one of a gradient
        with contextlib.suppress(Exception):  # a compiler that failed goes on recording; a second beginning ends that
            jit_trace._using_trace = False
            jit_trace.set_jit_context(None)
            _begin_and_end()
        raise
    finally:
        jit_trace._using_trace = False  # which an exception leaves on
        jit_trace.set_jit_context(None)
        _recorder.forget()
        _recorder.compiled = False
        jit_trace._trace_jit_context, jit_trace._get_caller_lines = own, lines


_kept: list[Any] = []
"""MindSpore names graphs by the `id` of the function, so none may be freed and its number used again."""


def _begin_and_end() -> None:
    def nothing(number: Tensor) -> Tensor:  # another each time: a known one would run, and begin no recording
        return number * 1

    _kept.append(nothing)
    ms.jit(nothing, capture_mode="trace")(Tensor(0.0, ms.float32))


@contextlib.contextmanager
def own_names(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Every parameter has another name while a graph is compiled: two models of a class have the same ones."""
    names = [(tensor, tensor.name) for tensor in tensors if isinstance(tensor, Parameter)]
    try:
        for number, (parameter, name) in enumerate(names):
            parameter.name = f"{name}.{number}"
        yield
    finally:
        for parameter, name in names:
            parameter.name = name


@contextlib.contextmanager
def recorded_part(tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Around the code that is recorded: an exception ends the recording, or the process could not record again.

    Args:
        tensors: its inputs.
    """
    try:
        for tensor in tensors:
            if tensor.is_complex() and not (isinstance(tensor, Parameter) and tensor.requires_grad):
                _recorder.pass_trace_node(ops.stop_gradient(tensor), tensor)  # for the same reason as in `_part`
        yield
        _recorder.stop_gradients()
    except BaseException:
        with contextlib.suppress(Exception):  # the graph is thrown away, whatever it is
            jit_trace._jit_trace_end(Tensor(0.0, ms.float32))
        raise
