"""Reading and writing of safetensors files: tensors by name, without torch and without the safetensors package."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

# The format's names, with MindSpore's type and the numpy type of the bytes (bfloat16 travels as its bits).
_TYPES: dict[str, tuple[Any, str]] = {
    "F64": (ms.float64, "<f8"),
    "F32": (ms.float32, "<f4"),
    "F16": (ms.float16, "<f2"),
    "BF16": (ms.bfloat16, "<u2"),
    "I64": (ms.int64, "<i8"),
    "I32": (ms.int32, "<i4"),
    "I16": (ms.int16, "<i2"),
    "I8": (ms.int8, "i1"),
    "U8": (ms.uint8, "u1"),
    "BOOL": (ms.bool_, "?"),
    "C64": (ms.complex64, "<c8"),
}
_NAMES = {kind: name for name, (kind, _) in _TYPES.items()}
_MAX_HEADER = 100_000_000


class SafetensorsFile:
    """The tensors of one file; each is read when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        """Read the header.

        Raises:
            ValueError: the file is no safetensors file, or shorter than its header says.
        """
        self.path = Path(path)
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(size - 8, _MAX_HEADER):
                raise ValueError(f"{path}: no safetensors file, or a truncated one")
            try:
                header = json.loads(file.read(length))
            except ValueError as error:
                raise ValueError(f"{path}: the header is no JSON ({error})") from None
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self._entries: dict[str, dict[str, Any]] = header
        self._start = 8 + length
        if self._start + max((entry["data_offsets"][1] for entry in header.values()), default=0) != size:
            raise ValueError(f"{path}: the file has {size} bytes, which is not what its header says; copy it again")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return tuple(self._entries[name]["shape"])

    def dtype(self, name: str) -> Any:
        """Data type of a tensor, without reading it.

        Raises:
            ValueError: a type that MindSpore does not have.
        """
        word = self._entries[name]["dtype"]
        if word not in _TYPES:
            raise ValueError(f"{self.path}: tensor {name!r} has the type {word}, which is not loaded")
        return _TYPES[word][0]

    def tensor(self, name: str) -> Tensor:
        """One tensor."""
        kind, entry = self.dtype(name), self._entries[name]
        code = np.dtype(_TYPES[entry["dtype"]][1])
        begin, end = entry["data_offsets"]
        shape = self.shape(name)
        if end - begin != math.prod(shape) * code.itemsize:
            raise ValueError(
                f"{self.path}: tensor {name!r} has {end - begin} bytes, which do not fit its shape {shape}"
            )
        with self.path.open("rb") as file:
            file.seek(self._start + begin)
            array = np.frombuffer(file.read(end - begin), code).reshape(shape)
        if kind == ms.bfloat16:
            return Tensor((array.astype(np.uint32) << 16).view(np.float32)).astype(ms.bfloat16)
        return Tensor(array.copy(), kind)


def save_safetensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors under their names, in their order.

    Raises:
        ValueError: a tensor has a type that the format does not have.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name, value in tensors.items():
        if value.dtype not in _NAMES:
            raise ValueError(f"{name} has the type {value.dtype}, which safetensors files do not hold")
        size = nbytes(value)
        header[name] = {
            "dtype": _NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(_bytes(value))


def nbytes(value: Tensor) -> int:
    """Bytes of a tensor in a file."""
    return math.prod(value.shape) * np.dtype(_TYPES[_NAMES[value.dtype]][1]).itemsize


def _bytes(value: Tensor) -> bytes:
    if value.dtype == ms.bfloat16:
        bits = value.astype(ms.float32).asnumpy().view(np.uint32)
        return np.ascontiguousarray((bits >> 16).astype("<u2")).tobytes()
    return np.ascontiguousarray(value.asnumpy()).tobytes()
