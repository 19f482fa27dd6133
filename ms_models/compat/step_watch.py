"""Watches one eager run of a function for what a graph could not repeat: values read on the host, effects in Python."""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

_READS = ("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__")
_HANDED_ON = ("asnumpy", "item", "tolist")
_MINDSPORE = os.path.dirname(os.path.abspath(ms.__file__))
_DECORATORS = (contextlib.__file__, functools.__file__)


@contextlib.contextmanager
def watching() -> Iterator[list[str]]:
    """Inside, everything runs as it always does; the list fills with reasons against a graph, each with its line."""
    found: list[str] = []
    put_back: list[Callable[[], None]] = []

    def watch(owner: Any, name: str, reason: Callable[[tuple[Any, ...]], str | None]) -> None:
        original, own = getattr(owner, name), name in vars(owner)
        held = vars(owner).get(name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if text := reason(args):
                found.append(f"{program_line()}: {text}")
            return original(*args, **kwargs)

        setattr(owner, name, staticmethod(watched) if isinstance(held, staticmethod) else watched)
        put_back.append(lambda: setattr(owner, name, held) if own else delattr(owner, name))

    for name in _READS:
        if hasattr(Tensor, name):
            watch(Tensor, name, lambda args: "a value is read back to Python")
    for name in _HANDED_ON:
        watch(Tensor, name, lambda args: _read())
    watch(builtins, "print", lambda args: "print writes on every call")
    watch(nn.Cell, "__call__", _own_gradient)
    apply = vars(ms._Function)["apply"]

    def applied(kind: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(f"{program_line()}: {kind.__name__} has a backward of its own")
        return apply.__func__(kind, *args, **kwargs)

    ms._Function.apply = classmethod(applied)
    put_back.append(lambda: setattr(ms._Function, "apply", apply))
    if numbers := sys.modules.get(f"{__package__}.random"):
        watch(numbers, "_source", lambda args: "random numbers are drawn on the host")
    before = _random_states()
    try:
        yield found
    finally:
        for undo in reversed(put_back):
            undo()
        if _random_states() != before:
            found.append("random numbers are drawn in Python")


def _read() -> str | None:
    frame = sys._getframe(3)
    if is_program(frame) or frame.f_code.co_name in _HANDED_ON:
        return None  # which may be handed on only, as the recording will show; one of these may call another
    return "a value is read back to Python"


def _own_gradient(args: tuple[Any, ...]) -> str | None:
    cell = args[0]
    if getattr(cell, "has_bprop", False):
        return f"{type(cell).__name__} has a bprop of its own"
    return None


def _random_states() -> tuple[Any, ...]:
    state = np.random.get_state(legacy=True)
    return random.getstate(), state[1].tobytes(), state[2]  # type: ignore[index]


def is_program(frame: FrameType) -> bool:
    """Whether a frame belongs neither to MindSpore nor to `ms_compat`, nor to what Python wraps around a function."""
    path = os.path.abspath(frame.f_code.co_filename)
    here = sys.modules[str(__package__)].__path__
    return not path.startswith((*(f"{folder}{os.sep}" for folder in (*here, _MINDSPORE)), *_DECORATORS))


def program_line() -> str:
    """`file:line` of the innermost frame of the program."""
    frame = sys._getframe(1)
    last = frame
    while frame is not None:
        if is_program(frame):
            last = frame
            break
        frame = frame.f_back  # type: ignore[assignment]
    return f"{last.f_code.co_filename}:{last.f_lineno}"
