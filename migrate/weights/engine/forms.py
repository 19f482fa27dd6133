"""What is in a target file besides the tensors, and where the tensors lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mappings.formats.mindspore_ckpt import SLICE_BYTES, ckpt_layout
from mappings.formats.safetensors import DTYPE_BITS, build_header
from migrate.weights.tensors import Stored, TargetFile


@dataclass(frozen=True)
class Image:
    """A file without its tensors' bytes."""

    frames: tuple[tuple[int, bytes], ...]
    """(offset, bytes) of everything that is no tensor."""
    offsets: tuple[int, ...]
    """First byte of each of the `ranges`."""
    size: int


def ranges(file: TargetFile) -> tuple[Stored, ...]:
    """The tensors of a file, cut where their bytes do not lie one behind the other (long ones in a `.ckpt`)."""
    if file.form == "safetensors":
        return file.tensors
    return tuple(part for tensor in file.tensors for part in _slices(tensor))


def image(file: TargetFile) -> Image:
    """Layout of a file in its form.

    Raises:
        ValueError: unknown form; a name occurs twice; a dtype or shape that the form cannot hold.
    """
    tensors = [(tensor.name, tensor.dtype, tensor.arrangement.shape) for tensor in file.tensors]
    if file.form == "safetensors":
        header, spans = build_header(tensors, file.metadata)
        size = len(header) + sum(nbytes for _, nbytes in spans.values())
        return Image(((0, header),), tuple(spans[name][0] for name, _, _ in tensors), size)
    if file.form == "ckpt":
        layout = ckpt_layout(tensors)
        offsets = tuple(offset for name, _, _ in tensors for offset, _ in layout.spans[name])
        return Image(layout.texts, offsets, layout.size)
    raise ValueError(f"{file.name}: form {file.form!r} is unknown")


def _slices(tensor: Stored) -> Iterator[Stored]:
    count = SLICE_BYTES * 8 // DTYPE_BITS[tensor.dtype]
    if tensor.arrangement.size <= count:
        yield tensor
        return
    flat = tensor.arrangement.reshape(-1)
    for start in range(0, flat.size, count):
        yield replace(tensor, arrangement=flat.slice(0, start, min(start + count, flat.size)))
