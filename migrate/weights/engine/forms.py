"""What is in a target file besides the tensors, and where the tensors lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mappings.formats.mindspore_ckpt import ckpt_layout, slice_sizes
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
    if file.form == "safetensors":
        tensors = [(tensor.name, tensor.dtype, tensor.arrangement.shape) for tensor in file.tensors]
        header, spans = build_header(tensors, file.metadata)
        size = len(header) + sum(nbytes for _, nbytes in spans.values())
        return Image(((0, header),), tuple(spans[name][0] for name, _, _ in tensors), size)
    if file.form == "ckpt":
        slices = [
            (tensor.name, tensor.dtype, tensor.arrangement.shape, nbytes)
            for tensor in file.tensors
            for nbytes in slice_sizes(tensor.arrangement.size * DTYPE_BITS[tensor.dtype] // 8)
        ]
        layout = ckpt_layout(slices)
        return Image(layout.texts, layout.offsets, layout.size)
    raise ValueError(f"{file.name}: form {file.form!r} is unknown")


def _slices(tensor: Stored) -> Iterator[Stored]:
    size = DTYPE_BITS[tensor.dtype] // 8
    sizes = slice_sizes(tensor.arrangement.size * size)
    if len(sizes) == 1:
        yield tensor
        return
    flat, start = tensor.arrangement.reshape(-1), 0
    for nbytes in sizes:
        yield replace(tensor, arrangement=flat.slice(0, start, start + nbytes // size))
        start += nbytes // size
