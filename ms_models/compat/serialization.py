"""`save` and `load` of torch's checkpoint files (the zip format of torch 1.6 and later) without torch.

Files may hold tensors, parameters, data types and plain containers of plain values. Everything else is refused by name,
in both directions: unpickling arbitrary classes would run code from the file.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import zipfile
from collections import OrderedDict
from typing import IO, Any, Literal

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

# torch's storage class of each data type, with the numpy type of its bytes (bfloat16 travels as its bits)
_STORAGES: dict[str, tuple[Any, str]] = {
    "DoubleStorage": (ms.float64, "f8"),
    "FloatStorage": (ms.float32, "f4"),
    "HalfStorage": (ms.float16, "f2"),
    "BFloat16Storage": (ms.bfloat16, "u2"),
    "LongStorage": (ms.int64, "i8"),
    "IntStorage": (ms.int32, "i4"),
    "ShortStorage": (ms.int16, "i2"),
    "CharStorage": (ms.int8, "i1"),
    "ByteStorage": (ms.uint8, "u1"),
    "BoolStorage": (ms.bool_, "?"),
    "ComplexFloatStorage": (ms.complex64, "c8"),
    "ComplexDoubleStorage": (ms.complex128, "c16"),
}
_DTYPES = {"bool": ms.bool_} | {
    name: getattr(ms, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class UnsupportedObjectError(pickle.UnpicklingError):
    """The file or object holds something that is neither a tensor nor a plain value."""


def load(f: Any) -> Any:
    """Read a file written by `save` or by `torch.save`.

    Args:
        f: path or binary file object.

    Raises:
        UnsupportedObjectError: the file refers to a class or function that is not a plain container.
        ValueError: no zip checkpoint, or a damaged one.
    """
    if not zipfile.is_zipfile(f):
        raise ValueError(f"{f}: not a zip checkpoint; write it with torch 1.6 or later")
    with zipfile.ZipFile(f) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{f}: a checkpoint has one data.pkl, this file has {len(pickles)}")
        root = pickles[0].removesuffix("data.pkl")
        order: Literal["<", ">"] = "<"
        if f"{root}byteorder" in archive.namelist():
            order = ">" if archive.read(f"{root}byteorder").strip() == b"big" else "<"
        return _Unpickler(archive, root, order).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str, order: Literal["<", ">"]) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")), encoding="utf-8")
        self._archive, self._root, self._order = archive, root, order
        self._storages: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return name
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
            ("torch", "Size"): tuple,
            ("torch", "device"): _device_text,
            ("__builtin__", "set"): set,
            ("builtins", "set"): set,
            ("__builtin__", "complex"): complex,
            ("builtins", "complex"): complex,
            ("_codecs", "encode"): _encode_latin1,
        }
        if (module, name) not in known:
            raise UnsupportedObjectError(
                f"the checkpoint holds a {module}.{name}, which is not loaded; save plain values"
            )
        return known[module, name]

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key, _, count = pid
        if kind != "storage" or storage not in _STORAGES:
            raise UnsupportedObjectError(f"the checkpoint holds a {storage!r}, which is not loaded")
        if key not in self._storages:
            dtype, code = _STORAGES[storage]
            raw = np.frombuffer(self._archive.read(f"{self._root}data/{key}"), np.dtype(code).newbyteorder(self._order))
            if len(raw) < count:
                raise ValueError(f"storage {key} of the checkpoint has {len(raw)} elements instead of {count}")
            self._storages[key] = (dtype, raw.astype(np.dtype(code)))
        return self._storages[key]


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, *ignored: Any) -> Tensor:
    dtype, flat = storage
    size, stride = tuple(size), tuple(stride)
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not (min(stride, default=0) >= 0 and 0 <= offset <= last < len(flat)):
        raise ValueError("a tensor of the checkpoint reaches beyond its storage")
    steps = tuple(s * flat.itemsize for s in stride)
    values = np.lib.stride_tricks.as_strided(flat[offset:], size, steps, writeable=False) if 0 not in size else None
    array = np.ascontiguousarray(values).reshape(size) if values is not None else np.empty(size, flat.dtype)
    if dtype == ms.bfloat16:
        wide = (array.reshape(-1).astype(np.uint32) << 16).view(np.float32)
        return Tensor(wide.reshape(size)).astype(ms.bfloat16)
    return Tensor(array, dtype)


def _rebuild_parameter(data: Tensor, requires_grad: bool, hooks: Any) -> Parameter:
    return Parameter(data, requires_grad=requires_grad)


def _device_text(*parts: Any) -> str:
    return ":".join(str(p) for p in parts)


def _encode_latin1(text: str, encoding: str) -> bytes:
    # how protocol 2 writes bytes
    if encoding != "latin1":
        raise UnsupportedObjectError(f"bytes in the encoding {encoding} are not loaded")
    return text.encode("latin1")


def save(obj: Any, f: Any) -> None:
    """Write a file that `load` and `torch.load(weights_only=True)` read.

    Args:
        obj: tensors and plain values in dicts, lists, tuples and sets.
        f: path or binary file object.

    Raises:
        UnsupportedObjectError: `obj` holds something else; the message says where.
    """
    _check(obj, "the object")
    body = io.BytesIO()
    pickler = _Pickler(body)
    pickler.dump(obj)
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", body.getvalue())
        archive.writestr("archive/byteorder", b"little")
        for key, array in enumerate(pickler.arrays):
            archive.writestr(f"archive/data/{key}", array.tobytes())
        archive.writestr("archive/version", b"3\n")


def _check(obj: Any, where: str) -> None:
    if isinstance(obj, Tensor | ms.Type) or type(obj) in _PLAIN:
        return
    if type(obj) in (dict, OrderedDict):
        for key, value in obj.items():
            _check(key, f"a key of {where}")
            _check(value, f"{where}[{key!r}]")
    elif type(obj) in (list, tuple, set):
        for number, value in enumerate(obj):
            _check(value, f"{where}[{number}]")
    else:
        name = f"{type(obj).__module__}.{type(obj).__qualname__}"
        raise UnsupportedObjectError(f"{where} is a {name}, which could not be loaded again; save plain values instead")


class _Global:
    """A name of torch's to be written into the pickle without importing torch."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class _Storage:
    def __init__(self, kind: str, key: int, count: int) -> None:
        self.kind, self.key, self.count = kind, key, count


# The pure Python pickler: the one in C cannot write names of classes that are not installed.
_PythonPickler: Any = pickle._Pickler


class _Pickler(_PythonPickler):
    """Writes tensors the way torch does."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, protocol=2)
        self.arrays: list[np.ndarray[Any, Any]] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _Global):
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Tensor) and id(obj) not in self.memo:
            self._save_tensor(obj)
        elif isinstance(obj, ms.Type):
            name = next((n for n, dtype in _DTYPES.items() if dtype == obj), None)
            if name is None:
                raise UnsupportedObjectError(f"the data type {obj} has no torch counterpart")
            self.save(_Global("torch", name))
        else:
            super().save(obj, save_persistent_id)

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _Storage):
            return ("storage", _Global("torch", obj.kind), str(obj.key), "cpu", obj.count)
        return None

    def _save_tensor(self, tensor: Tensor) -> None:
        kind = next((k for k, (dtype, _) in _STORAGES.items() if dtype == tensor.dtype), None)
        if kind is None:
            raise UnsupportedObjectError(f"a tensor of type {tensor.dtype} has no torch counterpart")
        if tensor.dtype == ms.bfloat16:
            array = (tensor.astype(ms.float32).asnumpy().view(np.uint32) >> 16).astype(np.uint16)
        else:
            array = tensor.asnumpy()
        self.arrays.append(np.ascontiguousarray(array))
        strides = tuple(int(np.prod(array.shape[i + 1 :])) for i in range(array.ndim))
        storage = _Storage(kind, len(self.arrays) - 1, int(array.size))
        self.save(_Global("torch._utils", "_rebuild_tensor_v2"))
        self.save((storage, 0, tuple(array.shape), strides, False, OrderedDict()))
        self.write(pickle.REDUCE)
        self.memoize(tensor)


def safe_globals(safe_globals: list[Any]) -> contextlib.AbstractContextManager[None]:
    """A region that changes nothing: files hold tensors and plain values, so `load` never needs a class."""
    return contextlib.nullcontext()
