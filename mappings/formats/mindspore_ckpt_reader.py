"""Where each tensor's bytes lie in a MindSpore `.ckpt` (see `mappings/formats/mindspore_ckpt.py`).

A walk from prefix to prefix finds every content; no tensor data is read, and nothing is held in memory.
"""

from __future__ import annotations

import math
import os
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mappings.formats.mindspore_ckpt import (
    CONTENT,
    CRC_BYTES,
    CRC_MARK,
    DIMS,
    MAP_TENSOR,
    TAG,
    TENSOR,
    TYPE,
    VALUE,
    CkptError,
    crc_trailer,
)
from mappings.formats.mindspore_dtypes import FROM_MINDSPORE
from mappings.formats.protobuf import (
    BYTES,
    VARINT,
    ProtobufError,
    integers,
    read_key,
    read_varint,
    signed,
)
from mappings.formats.safetensors import DTYPE_BITS, MAX_RANK

WINDOW = 64 << 10  # prefixes are read through this, contents are stepped over
MAX_TEXT, MAX_NAME = 4 << 20, 64 << 10


@dataclass(frozen=True)
class CkptTensor:
    """One tensor, with its spans (offset in the file, bytes) in order; one, or several where it was sliced."""

    name: str
    path: Path
    dtype: str
    """The safetensors name of its type."""
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Ckpt:
    """What a file holds."""

    tensors: tuple[CkptTensor, ...]
    """In stored order."""
    texts: dict[str, str]
    """Values that are strings."""
    crc: int | None
    """The recorded checksum of the values."""


def read_ckpt(path: Path) -> Ckpt:
    """Tensors and texts of a file, from its prefixes alone.

    Raises:
        CkptError: the file cannot be read or breaks the format.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise CkptError(path, "is no regular file")
        with path.open("rb", buffering=0) as file:
            return _read(path, _Window(path, file.fileno(), status.st_size))
    except OSError as error:
        raise CkptError(path, f"cannot be read ({error.strerror})") from error


class _Window:
    """Small reads anywhere in a file, through one buffer."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path, self.fd, self.size = path, fd, size
        self.start, self.buffer = 0, b""

    def bytes(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes from an offset; fewer only at the end of the file."""
        if not self.start <= offset or offset + count > self.start + len(self.buffer):
            self.start, self.buffer = offset, os.pread(self.fd, max(count, WINDOW), offset)
        at = offset - self.start
        return self.buffer[at : at + count]

    def key(self, offset: int, end: int) -> tuple[int, int, int]:
        """Field number, wire type and the offset behind both."""
        number, kind, used = read_key(self.bytes(offset, min(20, end - offset)), 0)
        return number, kind, offset + used

    def varint(self, offset: int, end: int) -> tuple[int, int]:
        """An unsigned number and the offset behind it."""
        value, used = read_varint(self.bytes(offset, min(10, end - offset)), 0)
        return value, offset + used

    def fields(self, offset: int, end: int) -> Iterator[_Field]:
        """Fields of a message; their contents are not read."""
        while offset < end:
            number, kind, behind = self.key(offset, end)
            if kind == VARINT:
                value, offset = self.varint(behind, end)
                yield _Field(number, behind, offset, value)
                continue
            if kind != BYTES:
                raise ProtobufError(f"no field of a checkpoint starts at byte {offset}")
            length, behind = self.varint(behind, end)
            offset = behind + length
            if offset > end:
                raise ProtobufError(f"truncated: a field at byte {behind} ends at byte {offset}, the data at {end}")
            yield _Field(number, behind, offset, None)


@dataclass(frozen=True)
class _Field:
    number: int
    start: int
    stop: int
    value: int | None
    """The number it holds; None: it holds the bytes `start:stop` of the file."""


@dataclass(frozen=True)
class _Value:
    tag: str
    type: str
    dims: tuple[int, ...]
    content: tuple[int, int]


def _read(path: Path, window: _Window) -> Ckpt:
    end, crc = window.size, None
    if end >= CRC_BYTES and (tail := window.bytes(end - CRC_BYTES, CRC_BYTES)).startswith(CRC_MARK):
        end, crc = end - CRC_BYTES, int.from_bytes(tail[len(CRC_MARK) :], "big")
    if not end:
        raise CkptError(path, "holds no values")
    groups: list[list[_Value]] = []
    seen: set[str] = set()
    try:
        for field in window.fields(0, end):
            if field.number != VALUE or field.value is not None:
                raise CkptError(path, f"is no MindSpore checkpoint: field {field.number} at byte {field.start}")
            value = _value(path, window, field)
            if groups and groups[-1][0].tag == value.tag:
                groups[-1].append(value)
            elif value.tag in seen:
                raise CkptError(path, "occurs twice", value.tag)
            else:
                groups.append([value])
                seen.add(value.tag)
    except ProtobufError as error:
        raise CkptError(path, f"is no MindSpore checkpoint, or an encrypted or damaged one ({error})") from error
    texts = {group[0].tag: _joined_text(path, window, group) for group in groups if group[0].type == "str"}
    return Ckpt(tuple(_tensor(path, group) for group in groups if group[0].type != "str"), texts, crc)


def _value(path: Path, window: _Window, whole: _Field) -> _Value:
    tag: str | None = None
    tensor: _Field | None = None
    for field in window.fields(whole.start, whole.stop):
        if field.number == TAG and field.value is None and tag is None:
            tag = _string(path, window, field, "tag")
        elif field.number == TENSOR and field.value is None and tensor is None:
            tensor = field
        elif field.number == MAP_TENSOR:
            raise CkptError(path, "is a map parameter (a hash table), which is not supported", tag)
        else:
            raise CkptError(path, f"has an unexpected field {field.number} at byte {field.start}", tag)
    if not tag or tensor is None:
        raise CkptError(path, f"value at byte {whole.start} has no {'tensor' if tag else 'tag'}", tag)
    dims: list[int] = []
    kind: str | None = None
    content: tuple[int, int] | None = None
    for field in window.fields(tensor.start, tensor.stop):
        if field.number == DIMS and len(dims) < MAX_RANK:
            packed = window.bytes(field.start, min(field.stop - field.start, 10 * MAX_RANK))
            dims += [signed(n) for n in integers(packed if field.value is None else field.value)]
        elif field.number == TYPE and field.value is None and kind is None:
            kind = _string(path, window, field, "type")
        elif field.number == CONTENT and field.value is None and content is None:
            content = field.start, field.stop - field.start
        else:
            raise CkptError(path, f"has an unexpected field {field.number} at byte {field.start}", tag)
    if kind is None or content is None:
        raise CkptError(path, f"has no {'content' if kind else 'type'}", tag)
    return _Value(tag, kind, tuple(dims), content)


def _string(path: Path, window: _Window, field: _Field, what: str) -> str:
    length = field.stop - field.start
    if length > MAX_NAME:
        raise CkptError(path, f"{what} of {length} bytes at byte {field.start}")
    try:
        text = window.bytes(field.start, length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CkptError(path, f"{what} at byte {field.start} is not UTF-8") from error
    if not text or any(unicodedata.category(char) == "Cc" for char in text):
        raise CkptError(path, f"{what} at byte {field.start} is empty or holds control characters")
    return text


def _joined_text(path: Path, window: _Window, group: list[_Value]) -> str:
    """A string value: four bytes per character, as numpy stores text."""
    tag = group[0].tag
    length = sum(value.content[1] for value in group)
    if len(group) > 1 or length % 4 or length > MAX_TEXT:
        raise CkptError(path, f"text in {len(group)} pieces of {length} bytes in all is not supported", tag)
    try:
        return window.bytes(*group[0].content).decode("utf-32-le").rstrip("\0")
    except UnicodeDecodeError as error:
        raise CkptError(path, "text is no UTF-32", tag) from error


def _tensor(path: Path, group: list[_Value]) -> CkptTensor:
    first = group[0]
    if any((value.type, value.dims) != (first.type, first.dims) for value in group):
        raise CkptError(path, "slices differ in type or dims", first.tag)
    if first.type not in FROM_MINDSPORE:
        raise CkptError(path, f"type {first.type!r} is not supported", first.tag)
    dtype = FROM_MINDSPORE[first.type]
    size = DTYPE_BITS[dtype] // 8
    if any(dim < 0 for dim in first.dims):
        raise CkptError(path, f"dims {list(first.dims)} are negative", first.tag)
    spans = tuple(value.content for value in group)
    total = sum(count for _, count in spans)
    shape = () if first.dims == (0,) and total else first.dims  # MindSpore takes dims of [0] for a scalar
    if total != math.prod(shape) * size or any(count % size for _, count in spans):
        needed = math.prod(shape) * size
        raise CkptError(path, f"{first.type} {list(shape)} needs {needed} bytes, the contents have {total}", first.tag)
    return CkptTensor(first.tag, path, dtype, shape, spans)


def damaged(path: Path, ckpt: Ckpt) -> bool:
    """Whether the values of a file differ from its recorded checksum; False where it has none."""
    if ckpt.crc is None:
        return False
    return crc_trailer(path, path.stat().st_size - CRC_BYTES) != CRC_MARK + ckpt.crc.to_bytes(10, "big")
