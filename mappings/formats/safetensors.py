"""Strict safetensors headers: where each tensor's bytes lie. No tensor data is read here.

Format: 8 bytes little-endian header length, that many bytes of JSON, then the data. Stricter than the Rust library:
duplicate keys, holes, overlaps, numbers that are booleans or floats, control characters and escaping names are refused.
A header whose entries are not in offset order is valid and accepted.
"""

from __future__ import annotations

import json
import math
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError

MAX_HEADER_BYTES = 100_000_000
ALIGNMENT = 8
PIECE = 8 << 20  # bytes read at once
TORCH_SAVE = (b"PK\x03\x04", b"\x80\x02")  # a zip, and a pickle before torch 1.6
LFS_POINTER = b"version "  # no length of a header: it would be 2 EB
MAX_RANK = 64  # no framework has more; keeps the product of hostile shapes cheap
# Bits per element, in the format's own dtype names.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


class SafetensorsError(UserError):
    """A safetensors file that breaks the format; the message names the file and, where there is one, the tensor."""

    def __init__(self, path: Path, problem: str, tensor: str | None = None) -> None:
        where = f"{path}: " + (f"tensor {tensor!r}: " if tensor is not None else "")
        super().__init__(f"{where}{problem}")
        self.path, self.tensor, self.problem = path, tensor, problem


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies on disk."""

    name: str
    path: Path
    dtype: str
    """The format's name, e.g. `BF16`."""
    shape: tuple[int, ...]
    offset: int
    """First byte, counted from the start of the file."""
    nbytes: int

    @property
    def itemsize(self) -> int:
        """Bytes per element; only for dtypes of whole bytes."""
        return DTYPE_BITS[self.dtype] // 8


def read_header(path: Path) -> tuple[list[TensorEntry], dict[str, str]]:
    """Entries in offset order, and the metadata, of one file.

    Raises:
        SafetensorsError: the file cannot be read, or breaks the format in any way.
    """
    raw, size = _read_raw(path)
    header = _parse(path, raw)
    metadata = _metadata(path, header.pop("__metadata__", {}))
    data_start = 8 + len(raw)
    entries = [_entry(path, name, value, data_start) for name, value in header.items()]
    # Empty tensors share their offset with a neighbour; the shorter comes first so that the tiling below holds.
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    position = data_start
    for entry in entries:
        if entry.offset != position:
            kind = "leaves a hole before it" if entry.offset > position else "overlaps the tensor before it"
            raise SafetensorsError(path, f"{kind} (starts at byte {entry.offset}, expected {position})", entry.name)
        position += entry.nbytes
    if position != size:
        problem = "truncated" if position > size else "has trailing bytes"
        raise SafetensorsError(path, f"{problem}: tensors end at byte {position}, the file at {size}")
    return entries, metadata


def build_header(
    tensors: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Header bytes for tensors stored in the given order, padded so that data starts on an 8-byte boundary.

    Args:
        tensors: (name, dtype, shape) in storage order.
        metadata: strings for `__metadata__`.

    Raises:
        ValueError: a name occurs twice, a tensor is no whole number of bytes, or the header is over the limit.

    Returns:
        The length prefix and JSON, and for each name its (offset from the start of the file, size in bytes).
    """
    body: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    spans = {}
    for name, dtype, shape in tensors:
        nbytes, rest = divmod(math.prod(shape) * DTYPE_BITS[dtype], 8)
        if rest or name in body:
            raise ValueError(f"tensor {name!r} occurs twice or is no whole number of bytes")
        body[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        spans[name] = (position, nbytes)
        position += nbytes
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"header of {len(text)} bytes is over the limit of {MAX_HEADER_BYTES}")
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {name: (start + at, size) for name, (at, size) in spans.items()}


def _read_raw(path: Path) -> tuple[bytes, int]:
    """The JSON of the header, and the size of the file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise SafetensorsError(path, "is no regular file")
        size = status.st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise SafetensorsError(path, f"only {size} bytes long, too short for a header")
            if prefix == LFS_POINTER:
                raise SafetensorsError(path, "is a Git LFS pointer, not the weights; fetch them with `git lfs pull`")
            length = int.from_bytes(prefix, "little")
            if length > MAX_HEADER_BYTES and prefix.startswith(TORCH_SAVE):
                raise SafetensorsError(
                    path,
                    "is no safetensors file: torch.save wrote it; `msmigrate weights convert FILE -o OUT --family none "
                    "--table TABLE --class CLASS` makes one",
                )
            if length > MAX_HEADER_BYTES:
                raise SafetensorsError(path, f"header length {length} is over the format's limit of {MAX_HEADER_BYTES}")
            if 8 + length > size:
                raise SafetensorsError(path, f"truncated: header of {length} bytes in a file of {size}")
            return file.read(length), size
    except OSError as error:
        raise SafetensorsError(path, f"cannot be read ({error.strerror})") from error


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in items:
            if key in result:
                raise SafetensorsError(path, f"key {key!r} occurs twice in the header")
            result[key] = value
        return result

    def no_constant(text: str) -> Any:
        raise SafetensorsError(path, f"header holds {text}, which is not JSON")

    if not raw.startswith(b"{"):
        raise SafetensorsError(path, "header does not start with '{'")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=no_constant)
        json.dumps(header, ensure_ascii=False).encode()  # lone surrogates, which \u escapes can smuggle in
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise SafetensorsError(path, f"header is not UTF-8 ({error.reason} at position {error.start})") from error
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, and numbers of thousands of digits
        raise SafetensorsError(path, f"header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise SafetensorsError(path, "header is not a JSON object")
    return header


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise SafetensorsError(path, "__metadata__ must map strings to strings")
    return value


def _entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    def fail(problem: str) -> SafetensorsError:
        return SafetensorsError(path, problem, name)

    if not name or any(unicodedata.category(char) == "Cc" for char in name):
        raise fail("name is empty or holds control characters")
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise fail("name would escape a directory")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise fail("entry must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise fail(f"unknown dtype {dtype!r}")
    for what, numbers in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            raise fail(f"{what} must be a list of whole numbers >= 0, found {numbers!r}")
    if len(shape) > MAX_RANK:
        raise fail(f"has {len(shape)} axes, more than {MAX_RANK}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail(f"data_offsets must be [begin, end], found {offsets}")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    nbytes = offsets[1] - offsets[0]
    if bits % 8 or bits // 8 != nbytes:
        raise fail(f"{dtype} {shape} needs {bits / 8:g} bytes, data_offsets give {nbytes}")
    return TensorEntry(name, path, dtype, tuple(shape), data_start + offsets[0], nbytes)


def read_bytes(entry: TensorEntry) -> bytearray:
    """All bytes of one tensor.

    Raises:
        SafetensorsError: the file became shorter than its header says.
    """
    data, at = bytearray(entry.nbytes), 0
    for piece in read_pieces(entry):  # joined, they would be in memory twice
        data[at : at + len(piece)] = piece
        at += len(piece)
    return data


def read_pieces(entry: TensorEntry, nbytes: int | None = None) -> Iterator[bytes]:
    """The bytes of one tensor in order, in pieces of at most 8 MiB.

    Args:
        entry: of the tensor.
        nbytes: how many from its beginning; all by default.

    Raises:
        SafetensorsError: the file became shorter than its header says.
    """
    at, end = entry.offset, entry.offset + (entry.nbytes if nbytes is None else nbytes)
    with entry.path.open("rb", buffering=0) as file:
        while at < end:
            piece = os.pread(file.fileno(), min(PIECE, end - at), at)
            if not piece:
                raise SafetensorsError(entry.path, f"ends {end - at} bytes early", entry.name)
            yield piece
            at += len(piece)
