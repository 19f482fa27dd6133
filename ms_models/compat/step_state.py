"""What a function depends on besides its arguments: the tensors it reaches, and the Python values a graph would keep.

A compiled step has every tensor as an input, so new contents, and new tensors in the same place, are seen. A number, a
mode or a switch becomes a constant of the graph; it is part of the `key`, and another key is another graph.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

_CELL_INTERNALS = frozenset(vars(nn.Cell())) - {"training"}
_LIBRARIES = ("mindspore", "numpy", "builtins")
_PLAIN = (int, float, complex, str, bytes, bool, type(None), range, np.generic)
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)


class StepState:
    """The state of some functions and modules, walked in a fixed order."""

    def __init__(self, functions: list[Callable[..., Any]], objects: list[Any]) -> None:
        self._functions, self._objects = functions, objects
        self._names: set[str] = set()
        """Attributes and globals that the code mentions; others cannot change what it computes."""
        size = -1
        while size != len(self._names):  # a class that is reached brings names, which bring further classes
            size = len(self._names)
            self.read()

    def read(self, arguments: Any = ()) -> Walk:
        """The state at this moment, with that of the arguments."""
        walk = Walk(self._names)
        walk.value(arguments)
        for function in self._functions:
            walk.function(function)
        for item in self._objects:
            walk.value(item)
        return walk


class Walk:
    """One walk through the state."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.key: list[Any] = []
        self.buffers: list[tuple[dict[str, Any], str]] = []
        """Where the buffers of modules are kept: a forward pass may put others in their place."""
        self._tensors: dict[int, Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._seen: dict[int, tuple[int, Any]] = {}

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor that was found, once, in order."""
        return list(self._tensors.values())

    def held(self) -> list[Any]:
        """The present contents of the places of buffers."""
        return [place[name] for place, name in self.buffers]

    def value(self, value: Any) -> None:
        if isinstance(value, Tensor):
            number = self._numbers.setdefault(id(value), len(self._numbers))
            self._tensors[id(value)] = value
            trainable = isinstance(value, Parameter) and value.requires_grad
            self.key.append((number, value.shape, str(value.dtype), trainable))
        elif isinstance(value, _PLAIN):
            self.key.append((type(value), repr(value) if isinstance(value, float) else value))  # NaN equals itself here
        elif isinstance(value, slice):  # which cannot be hashed
            self.key.append(slice)
            self.value((value.start, value.stop, value.step))
        elif isinstance(value, np.ndarray):
            self.key.append((value.shape, value.dtype.str, zlib.crc32(value.tobytes())))
        elif id(value) in self._seen:
            self.key.append(("again", self._seen[id(value)][0]))
        elif isinstance(value, _CONTAINERS):
            self._visit(value)
            self._container(value)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            self._visit(value)
            self.function(value)
        elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType) or _is_library(type(value)):
            self.key.append(id(value) if not isinstance(value, nn.Cell) else type(value))
            if isinstance(value, nn.Cell):
                self._visit(value)
                self._object(value)
        else:
            self._visit(value)
            self._object(value)

    def _visit(self, value: Any) -> None:
        """Keeps the value, so that its `id` stays its own."""
        self._seen[id(value)] = (len(self._seen), value)

    def _container(self, value: Any) -> None:
        self.key.append((type(value), len(value)))
        if isinstance(value, dict):
            for key, item in value.items():
                self.key.append(key)
                self.value(item)
        elif isinstance(value, set | frozenset):
            self.key.append(frozenset(map(repr, value)))
        else:
            for item in value:
                self.value(item)

    def _object(self, value: Any) -> None:
        """An object of a class of the program: the attributes that its code, or the code that has it, mentions."""
        self.key.append(type(value))
        is_cell = isinstance(value, nn.Cell)
        kind: Any = type(value)
        for function in _methods(kind):
            if is_cell or function.__name__ in self.names:
                self.names |= _names(function.__code__)
                self._globals(function)
        for name, item in _attributes(value):
            if name in ("_params", "_cells", "_buffers") and is_cell:
                self.key.append((name, tuple(item)))
                for key, part in list(item.items()):
                    self.value(part)
                    if name == "_buffers" and isinstance(part, Tensor):
                        self.buffers.append((item, key))
            elif is_cell and name == "_forward_hook":
                self.key.append(tuple(item))
            elif is_cell and name in _CELL_INTERNALS:
                continue
            elif name in self.names or (is_cell and _is_tensors(item)):
                self.key.append(name)
                self.value(item)

    def function(self, function: Any) -> None:
        """What a function has from around it: its defaults, its closure, and the globals it names."""
        if isinstance(function, functools.partial):
            self.value((function.args, function.keywords))
            function = function.func
        if isinstance(function, types.MethodType):
            self.names.add(function.__func__.__name__)
            self.value(function.__self__)
            function = function.__func__
        if not isinstance(function, types.FunctionType) or _is_library(function):
            self.key.append(id(function))
            return
        self.key.append(function.__code__)
        self.names |= _names(function.__code__)
        for cell in function.__closure__ or ():
            if cell.cell_contents is not function:
                self.value(cell.cell_contents)
        self.value(function.__defaults__)
        self._globals(function)

    def _globals(self, function: types.FunctionType) -> None:
        if id(function.__code__) in self._seen:
            return
        self._visit(function.__code__)
        for name in sorted(_names(function.__code__)):
            found = function.__globals__.get(name)
            if found is not None and not isinstance(found, type | types.ModuleType):
                self.key.append(name)
                self.value(found)


@contextlib.contextmanager
def put_back_on_failure(state: Walk, written: Iterable[int]) -> Iterator[None]:
    """Around a recording, which runs what it records: if it fails, the eager run that follows begins where it began.

    Args:
        state: before it.
        written: numbers of the tensors whose contents it may change.
    """
    held, contents = state.held(), {number: state.tensors[number].copy() for number in written}
    try:
        yield
    except BaseException:
        for (place, name), value in zip(state.buffers, held, strict=True):
            place[name] = value
        for number, value in contents.items():
            state.tensors[number].copy_(value)
        raise


def checksums(tensors: Iterable[Tensor]) -> list[int]:
    """Of the contents, to see which tensors a run writes into."""
    values = ((tensor.float() if tensor.dtype == ms.bfloat16 else tensor).asnumpy() for tensor in tensors)
    return [zlib.crc32(np.ascontiguousarray(value)) for value in values]  # type: ignore[arg-type]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    slots = [slot for kind in type(value).__mro__ for slot in _slots(kind) if hasattr(value, slot)]
    return [*getattr(value, "__dict__", {}).items(), *((slot, getattr(value, slot)) for slot in slots)]


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_tensors(value: Any) -> bool:
    """Whether it is a tensor or begins with one: code may reach it by a name that it makes, as in `getattr`."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | collections.deque):
        return isinstance(value, Tensor)
    return isinstance(next(iter(value), None), Tensor)


@functools.cache
def _names(code: types.CodeType) -> frozenset[str]:
    """Names and attributes in a function and in those defined inside of it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*(_names(constant) for constant in inner))


@functools.cache
def _methods(kind: type) -> tuple[types.FunctionType, ...]:
    return tuple(_functions_of(kind))


def _functions_of(kind: type) -> Iterator[types.FunctionType]:
    for base in kind.__mro__:
        if _is_library(base):
            continue
        for item in vars(base).values():
            if isinstance(item, property):
                item = item.fget
            item = getattr(item, "__func__", item)
            if isinstance(item, types.FunctionType):
                yield item


def _is_library(item: Any) -> bool:
    return str(getattr(item, "__module__", None) or "").split(".")[0] in _LIBRARIES
