"""How a MindSpore `.ckpt` is laid out: every offset is known before any tensor is there.

The file is one protobuf message: a sequence of values (tag, then dims, type and content). A tensor over `SLICE_BYTES`
is stored as several neighbouring values of one tag, each with the dims of the whole. Behind the values there may be the
characters `crc_num` and ten bytes with the CRC-32 of all before it. Such files are read by
`mappings/formats/mindspore_ckpt_reader.py`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.mindspore_dtypes import TO_MINDSPORE
from mappings.formats.protobuf import bytes_field, bytes_prefix, number_fields
from mappings.formats.safetensors import DTYPE_BITS

SLICE_BYTES = 512 << 20
VALUE, TAG, TENSOR, MAP_TENSOR = 1, 1, 2, 3
DIMS, TYPE, CONTENT = 1, 2, 3
CRC_MARK = b"crc_num"
CRC_BYTES = len(CRC_MARK) + 10
CHUNK = 4 << 20


class CkptError(UserError):
    """A `.ckpt` that breaks the format; the message names the file and, where there is one, the tensor."""

    def __init__(self, path: Path, problem: str, tensor: str | None = None) -> None:
        where = f"{path}: " + (f"tensor {tensor!r}: " if tensor is not None else "")
        super().__init__(f"{where}{problem}")
        self.path, self.tensor, self.problem = path, tensor, problem


@dataclass(frozen=True)
class CkptLayout:
    """A file to be written: its size, the bytes between contents, and where contents go."""

    size: int
    """Of everything but a checksum."""
    texts: tuple[tuple[int, bytes], ...]
    """(offset, bytes) of all prefixes."""
    spans: dict[str, tuple[tuple[int, int], ...]]
    """(offset, bytes) of the contents of each tensor, in order."""


def ckpt_layout(tensors: Sequence[tuple[str, str, Sequence[int]]], slice_bytes: int = SLICE_BYTES) -> CkptLayout:
    """Layout of a file with tensors in the given order, so that contents can be copied to their places.

    Args:
        tensors: (name, safetensors dtype, shape) in storage order.
        slice_bytes: a tensor of more bytes is stored in slices of at most so many, as MindSpore does.

    Raises:
        ValueError: a name occurs twice or is empty, the type has no MindSpore name, or the shape is [0], which
            MindSpore would take for a scalar.
    """
    texts: list[tuple[int, bytes]] = []
    spans: dict[str, tuple[tuple[int, int], ...]] = {}
    position = 0
    for name, dtype, shape in tensors:
        if not name or name in spans:
            raise ValueError(f"tensor {name!r} occurs twice or has no name")
        if dtype not in TO_MINDSPORE:
            raise ValueError(f"tensor {name!r}: dtype {dtype} cannot be stored in a .ckpt")
        nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
        if tuple(shape) == (0,):
            raise ValueError(f"tensor {name!r}: shape [0] cannot be stored in a .ckpt")
        placed = []
        for start in range(0, max(nbytes, 1), slice_bytes):
            count = min(slice_bytes, nbytes - start)
            prefix = _value_prefix(name, TO_MINDSPORE[dtype], shape, count)
            texts.append((position, prefix))
            placed.append((position + len(prefix), count))
            position += len(prefix) + count
        spans[name] = tuple(placed)
    return CkptLayout(position, tuple(texts), spans)


def text_value(name: str, text: str) -> bytes:
    """A value that is a string."""
    content = text.encode("utf-32-le")
    return _value_prefix(name, "str", (), len(content)) + content


def _value_prefix(name: str, kind: str, dims: Sequence[int], count: int) -> bytes:
    """What stands before the `count` bytes of a content."""
    tensor = number_fields(DIMS, dims) + bytes_field(TYPE, kind.encode()) + bytes_prefix(CONTENT, count)
    head = bytes_field(TAG, name.encode()) + bytes_prefix(TENSOR, len(tensor) + count) + tensor
    return bytes_prefix(VALUE, len(head) + count) + head


def crc_trailer(path: Path, size: int) -> bytes:
    """The checksum record for a file whose values end at `size`; reads them once."""
    crc, left = 0, size
    with path.open("rb") as file:
        while left:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise CkptError(path, f"ends {left} bytes early")
            crc = zlib.crc32(chunk, crc)
            left -= len(chunk)
    return CRC_MARK + crc.to_bytes(10, "big")
