"""`.bin`, `.pt` and `.pth` files of `torch.save`: where each tensor's bytes lie, without torch and without unpickling.

Two containers: a zip archive of uncompressed members (`<name>/data.pkl`, `<name>/data/<key>`), and the legacy stream of
pickles with the storages behind it. Either way tensors are byte ranges that the copy engine can read.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.formats.pickle_machine import MAX_BYTES, PickleError, Storage, TensorView, run
from mappings.formats.regular_files import open_regular
from mappings.formats.safetensors import DTYPE_BITS

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
MAX_DEPTH = 32
LOCAL_HEADER = struct.Struct("<4sHHHHHIIIHH")
WRAPPERS = ("state_dict", "model", "model_state_dict", "module")
"""Keys under which training scripts keep the state dict; named in messages, never chosen by us."""


@dataclass(frozen=True)
class PickledTensor:
    """A tensor in a pickled file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; the storage's own where the tensor is a view."""
    offset: int
    """First byte of the tensor's first element, counted from the start of the file."""
    storage: tuple[int, int]
    """First byte and size in bytes of the memory it is a view of."""

    @property
    def is_contiguous(self) -> bool:
        """Whether its bytes lie row by row without a gap."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return math.prod(self.shape) == 0
            expected *= size
        return True

    @property
    def nbytes(self) -> int:
        """Size of its elements."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def read_tensors(path: Path, key: str | None = None) -> dict[str, PickledTensor]:
    """The tensors of a state dict, by name, in the order of the file.

    Args:
        path: file of `torch.save`.
        key: where in the saved object the state dict is: names of nested dictionaries, joined by dots.

    Raises:
        PickleError: malformed, compressed, truncated, of another byte order; anything but tensors in plain containers;
            or no state dict under the key.
    """
    try:
        with open_regular(path) as file:
            is_zip = file.read(4) == b"PK\x03\x04"
        saved, ranges = _read_zip(path) if is_zip else _read_legacy(path)
    except OSError as error:
        raise PickleError(path, f"cannot be read ({error.strerror or error})") from error
    state = _state_dict(path, saved, key)
    size = path.stat().st_size
    return {name: _located(path, name, view, ranges, size) for name, view in state.items()}


def _state_dict(path: Path, saved: Any, key: str | None) -> dict[str, TensorView]:
    here = saved
    for name in key.split(".") if key else ():
        if type(here) is not dict or name not in here:
            known = ", ".join(map(repr, list(here)[:8])) if type(here) is dict else type(here).__name__
            raise PickleError(path, f"has no {name!r} (of key {key!r}); found {known}")
        here = here[name]
    if type(here) is not dict or not all(isinstance(value, TensorView) for value in here.values()) or not here:
        raise PickleError(path, _what_instead(here))
    for name in here:
        if type(name) is not str or not name or not name.isprintable():
            raise PickleError(path, f"tensor name {name!r} is empty, no text or holds control characters")
    return here


def _what_instead(value: Any) -> str:
    if type(value) is not dict:
        return f"holds a {type(value).__name__}, not a state dict"
    if not value:
        return "holds an empty state dict"
    places = [place for place in _places(value, (), 0) if place]
    hint = "; give key " + " or ".join(repr(".".join(p)) for p in places[:3]) if places else ""
    others = [name for name, item in value.items() if not isinstance(item, TensorView)]
    return f"is no state dict: {', '.join(map(repr, others[:5]))} are no tensors{hint}"


def _places(value: dict[Any, Any], path: tuple[str, ...], depth: int) -> Iterator[tuple[str, ...]]:
    """Where dictionaries of tensors lie."""
    if value and all(isinstance(item, TensorView) for item in value.values()):
        yield path
    elif depth < MAX_DEPTH:
        for name, item in value.items():
            if type(item) is dict and type(name) is str:
                yield from _places(item, (*path, name), depth + 1)


def _located(
    path: Path, name: str, view: TensorView, ranges: Mapping[str, tuple[int, int]], size: int
) -> PickledTensor:
    if view.storage.key not in ranges:
        raise PickleError(path, f"tensor {name!r}: its storage {view.storage.key!r} is missing")
    start, count = ranges[view.storage.key]
    width = DTYPE_BITS[view.dtype] // 8
    stated = view.storage.count * DTYPE_BITS[view.storage.dtype] // 8
    if count != stated:
        raise PickleError(path, f"tensor {name!r}: its storage has {count} bytes, the pickle says {stated}")
    last = view.offset + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    if 0 not in view.shape and (last + 1) * width > count:
        raise PickleError(path, f"tensor {name!r}: reaches behind the {count} bytes of its storage")
    if start + count > size:
        raise PickleError(path, f"tensor {name!r}: truncated, its storage ends behind the file")
    return PickledTensor(name, path, view.dtype, view.shape, view.strides, start + view.offset * width, (start, count))


def _read_zip(path: Path) -> tuple[Any, dict[str, tuple[int, int]]]:
    """The saved object, and (first byte, bytes) of every storage by key."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise PickleError(path, f"is no readable zip archive ({error})") from error
    with archive:
        members = {}
        for member in archive.infolist():
            if member.filename in members:
                raise PickleError(path, f"member {member.filename!r} occurs twice")
            members[member.filename] = member
        pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            kind = (
                "a TorchScript archive" if any(name.endswith("constants.pkl") for name in members) else "no torch.save"
            )
            raise PickleError(path, f"holds {len(pickles)} data.pkl: {kind}")
        prefix = pickles[0].removesuffix("data.pkl")
        if any(name.endswith("constants.pkl") for name in members):
            raise PickleError(path, "is a TorchScript archive, which holds code; save the state_dict() instead")
        order = members.get(prefix + "byteorder")
        if order is not None and _content(path, archive, order, 16) != b"little":
            raise PickleError(path, "was written on a big-endian machine")
        saved, _ = run(_content(path, archive, members[pickles[0]], members[pickles[0]].file_size), path)
        ranges = {}
        with path.open("rb") as file:
            for name, member in members.items():
                if name.startswith(prefix + "data/"):
                    ranges[name.removeprefix(prefix + "data/")] = _range(path, file, member)
    return saved, ranges


def _content(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> bytes:
    if member.compress_type != zipfile.ZIP_STORED or member.file_size > max(limit, path.stat().st_size):
        raise PickleError(path, f"member {member.filename!r} is compressed; torch.save writes uncompressed ones")
    try:
        return archive.read(member)
    except (zipfile.BadZipFile, RuntimeError, EOFError) as error:  # RuntimeError: encrypted
        raise PickleError(path, f"member {member.filename!r} is damaged ({error})") from error


def _range(path: Path, file: Any, member: zipfile.ZipInfo) -> tuple[int, int]:
    """Where the bytes of a member lie: behind its local header, whose name and extra field may differ in length."""
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size or member.flag_bits & 1:
        raise PickleError(path, f"member {member.filename!r} is compressed or encrypted")
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise PickleError(path, f"member {member.filename!r} has no local header")
    *_, name_length, extra_length = LOCAL_HEADER.unpack(header)
    return member.header_offset + LOCAL_HEADER.size + name_length + extra_length, member.file_size


def _read_legacy(path: Path) -> tuple[Any, dict[str, tuple[int, int]]]:
    """As `_read_zip`. The pickles stand in front of the storages, so only they are read."""
    data = _head(path)
    magic, at = run(data, path)
    if magic != MAGIC:
        raise PickleError(path, "was not written by torch.save (no magic number)")
    protocol, at = run(data, path, at)
    system, at = run(data, path, at)
    if protocol != PROTOCOL:
        raise PickleError(path, f"has protocol {protocol!r}, {PROTOCOL} is known")
    if type(system) is not dict or system.get("little_endian") is not True:
        raise PickleError(path, "was written on a big-endian machine")
    saved, at = run(data, path, at)
    keys, at = run(data, path, at)
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
        raise PickleError(path, "malformed list of storages")
    widths = {storage.key: DTYPE_BITS[storage.dtype] // 8 for storage in _storages(saved)}
    ranges = {}
    with path.open("rb") as file:
        for key in keys:
            file.seek(at)
            count = int.from_bytes(file.read(8), "little", signed=True)
            if count < 0 or key not in widths:
                raise PickleError(path, f"storage {key!r} is malformed or belongs to no tensor")
            ranges[key] = at + 8, count * widths[key]
            at += 8 + count * widths[key]
    if at != path.stat().st_size:
        raise PickleError(path, f"storages end at byte {at}, the file at {path.stat().st_size}")
    return saved, ranges


def _head(path: Path) -> bytes:
    """The file up to the end of its pickles, which is found by reading more and more of it."""
    size, length = min(path.stat().st_size, MAX_BYTES), 1 << 20
    while True:
        with path.open("rb") as file:
            data = file.read(length)
        try:
            at = 0
            for _ in range(5):
                at = run(data, path, at)[1]
            return data
        except PickleError:
            if length >= size:
                raise
            length = min(length * 8, size)


def _storages(saved: Any) -> Iterator[Storage]:
    """Every storage that a saved object refers to; an object that holds itself is visited once."""
    pending, seen = [saved], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, TensorView):
            yield value.storage
        elif isinstance(value, Storage):
            yield value
        elif type(value) is dict:
            pending += value.values()
        elif type(value) in (list, tuple):
            pending += value
