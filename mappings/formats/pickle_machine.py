"""Runs the pickles that `torch.save` writes for tensors, and nothing else: nothing named in them is imported or called.

`pickletools` of the standard library splits the bytes into opcodes; this machine knows what the few opcodes mean that
state dicts need. A global is a name, never an object, and only the names below are known. All else is refused by name.
"""

from __future__ import annotations

import pickletools
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from mappings.errors import UserError

STORAGES = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64", "UntypedStorage": "U8",
}  # fmt: skip
DTYPES = {
    "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64", "uint16": "U16", "uint32": "U32",
    "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
MODULES_OF_STORAGES = ("torch", "torch.storage", "torch.cuda")
FUNCTIONS = {
    "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "collections.OrderedDict", "torch.Size",
}  # fmt: skip
MAX_BYTES = 1 << 30
"""A pickle of a hundred thousand tensors takes 30 MB."""


class PickleError(UserError):
    """A pickle that is malformed, or asks for more than tensors in plain containers."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


@dataclass(frozen=True)
class Global:
    """A name that the pickle mentions: a function of `FUNCTIONS`, or a storage class or dtype with its spelling."""

    name: str
    dtype: str | None = None


@dataclass(frozen=True)
class Storage:
    """The memory of one or several tensors."""

    key: str
    dtype: str
    """Safetensors' spelling of its elements; U8 where the storage is untyped."""
    count: int
    """In elements."""


@dataclass(frozen=True)
class TensorView:
    """A tensor: a view of a storage."""

    storage: Storage
    dtype: str
    offset: int
    """In elements of `dtype`."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = object()


def run(data: bytes, path: Path, at: int = 0) -> tuple[Any, int]:
    """The object of the first pickle in `data[at:]`, and where the pickle ends.

    Plain containers, numbers, strings, `Global`s, `Storage`s and `TensorView`s are all that it can be made of.

    Raises:
        PickleError: malformed, or anything else in it.
    """
    if len(data) - at > MAX_BYTES:
        raise PickleError(path, f"its pickle has {len(data) - at} bytes, more than {MAX_BYTES}")
    stream = BytesIO(data)
    stream.seek(at)
    machine = _Machine(path)
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                return machine.result(), stream.tell()
            machine.step(opcode.name, argument)
    except PickleError:
        raise
    except (ValueError, UnicodeDecodeError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise PickleError(
            path, f"malformed pickle near byte {stream.tell()} ({type(error).__name__}: {error})"
        ) from error
    raise PickleError(path, "its pickle has no end")


class _Machine:
    """Stack and memo. `step` never calls anything that the pickle names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def result(self) -> Any:
        if len(self.stack) != 1:
            raise PickleError(self.path, f"malformed pickle: {len(self.stack)} objects are left at its end")
        return self.stack[0]

    def step(self, name: str, argument: Any) -> None:
        """Carry out one opcode."""
        if name in _PLAIN:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            size = _TUPLES[name]
            self._need(size)
            items = tuple(self.stack[len(self.stack) - size :])
            del self.stack[len(self.stack) - size :]
            self.stack.append(items)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._need(1)
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name not in ("PROTO", "FRAME"):
            handler = _HANDLERS.get(name)
            if handler is None:
                raise PickleError(self.path, f"pickle opcode {name} is refused: state dicts do not need it")
            handler(self, argument)

    def _need(self, count: int) -> None:
        if len(self.stack) < count or any(item is _MARK for item in self.stack[len(self.stack) - count :]):
            raise PickleError(self.path, "malformed pickle: an opcode finds too little on the stack")

    def _pop(self) -> Any:
        self._need(1)
        return self.stack.pop()

    def _since_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise PickleError(self.path, "malformed pickle: a mark is missing")

    def mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def make_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._since_mark()))

    def append(self, _: Any) -> None:
        self._extend([self._pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        self._need(1)
        if type(self.stack[-1]) is not list:
            raise PickleError(self.path, f"malformed pickle: appends to {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(items)

    def setitem(self, _: Any) -> None:
        value = self._pop()
        self._set([self._pop(), value])

    def setitems(self, _: Any) -> None:
        self._set(self._since_mark())

    def _set(self, items: list[Any]) -> None:
        self._need(1)
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise PickleError(self.path, f"malformed pickle: sets items of {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int, float, bool, bytes, type(None)):
                raise PickleError(self.path, f"a key of type {type(key).__name__} is refused")
            target[key] = value

    def global_(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self._known(module, name))

    def stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise PickleError(self.path, "malformed pickle: a global whose name is no text")
        self.stack.append(self._known(module, name))

    def _known(self, module: str, name: str) -> Global:
        full = f"{module}.{name}"
        if full in FUNCTIONS:
            return Global(full)
        if module in MODULES_OF_STORAGES and name in STORAGES:
            return Global(full, STORAGES[name])
        if module == "torch" and name in DTYPES:
            return Global(full, DTYPES[name])
        raise PickleError(
            self.path, f"its pickle asks for {full}, which is refused: only tensors in plain containers are read"
        )

    def persistent(self, _: Any) -> None:
        """('storage', class, key, location, count), and a view of another storage in the legacy format."""
        value = self._pop()
        if (
            type(value) is not tuple
            or len(value) not in (5, 6)
            or value[0] != "storage"
            or value[5:] not in ((), (None,))
        ):
            raise PickleError(self.path, f"refers to a storage in an unknown way: {_short(value)}")
        _, kind, key, _, count = value[:5]
        if (
            not isinstance(kind, Global)
            or kind.dtype is None
            or type(key) is not str
            or type(count) is not int
            or count < 0
        ):
            raise PickleError(self.path, f"refers to a storage in an unknown way: {_short(value)}")
        self.stack.append(Storage(key, kind.dtype, count))

    def reduce(self, _: Any) -> None:
        arguments, function = self._pop(), self._pop()
        if not isinstance(function, Global) or function.name not in FUNCTIONS or type(arguments) is not tuple:
            raise PickleError(self.path, f"its pickle calls {_short(function)}, which is refused")
        name = function.name.rpartition(".")[2]
        if name == "OrderedDict":
            if arguments:
                raise PickleError(self.path, "malformed pickle: OrderedDict with arguments")
            self.stack.append({})
        elif name == "Size":
            self.stack.append(self._numbers(arguments[0] if len(arguments) == 1 else None))
        elif name == "_rebuild_parameter":
            if len(arguments) != 3 or not isinstance(arguments[0], TensorView):
                raise PickleError(self.path, "malformed pickle: a parameter without a tensor")
            self.stack.append(arguments[0])
        else:
            self.stack.append(self._tensor(name, arguments))

    def _tensor(self, function: str, arguments: tuple[Any, ...]) -> TensorView:
        if len(arguments) < 4 or not isinstance(arguments[0], Storage):
            raise PickleError(self.path, "malformed pickle: a tensor without a storage")
        storage, offset = arguments[:2]
        shape, strides = self._numbers(arguments[2]), self._numbers(arguments[3])
        dtype, metadata = storage.dtype, arguments[6:]
        if function == "_rebuild_tensor_v3":
            metadata = arguments[7:]
            kind = arguments[6] if len(arguments) > 6 else None
            if not isinstance(kind, Global) or kind.dtype is None:
                raise PickleError(self.path, f"a tensor has the dtype {_short(kind)}, which is refused")
            dtype = kind.dtype
        if any(metadata):
            raise PickleError(self.path, f"a tensor is no plain view of its storage ({_short(metadata[0])}): copy it")
        if type(offset) is not int or offset < 0 or len(shape) != len(strides):
            raise PickleError(self.path, "malformed pickle: offset, shape and strides of a tensor do not fit")
        return TensorView(storage, dtype, offset, shape, strides)

    def _numbers(self, value: Any) -> tuple[int, ...]:
        if type(value) not in (tuple, list) or any(type(n) is not int or not 0 <= n < 2**63 for n in value):
            raise PickleError(self.path, f"malformed pickle: {_short(value)} are no sizes")
        return tuple(value)

    def build(self, _: Any) -> None:
        """The attributes of a state dict (`_metadata`, versions of its modules) say nothing about tensors."""
        state = self._pop()
        self._need(1)
        if type(self.stack[-1]) is not dict or type(state) is not dict or set(state) - {"_metadata"}:
            raise PickleError(self.path, "its pickle sets the state of an object, which is refused")


def _short(value: Any) -> str:
    return reprlib.repr(value.name if isinstance(value, Global) else value)


_PLAIN = frozenset(
    {
        "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
        "BINBYTES8", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    }
)  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
}  # fmt: skip
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark, "TUPLE": _Machine.make_tuple, "APPEND": _Machine.append, "APPENDS": _Machine.appends,
    "SETITEM": _Machine.setitem, "SETITEMS": _Machine.setitems, "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global, "BINPERSID": _Machine.persistent, "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}  # fmt: skip
