"""What is in a target file besides the tensors, and where the tensors lie."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.formats.safetensors import build_header
from migrate.weights.tensors import TargetFile


@dataclass(frozen=True)
class Image:
    """A file without its tensors' bytes."""

    frames: tuple[tuple[int, bytes], ...]
    """(offset, bytes) of everything that is no tensor."""
    offsets: tuple[int, ...]
    """First byte of each tensor."""
    size: int


def image(file: TargetFile) -> Image:
    """Layout of a file in its form.

    Raises:
        ValueError: unknown form; a name occurs twice.
    """
    if file.form == "safetensors":
        return _safetensors(file)
    raise ValueError(f"{file.name}: form {file.form!r} is unknown")


def _safetensors(file: TargetFile) -> Image:
    tensors = [(tensor.name, tensor.dtype, tensor.arrangement.shape) for tensor in file.tensors]
    header, spans = build_header(tensors, file.metadata)
    size = len(header) + sum(nbytes for _, nbytes in spans.values())
    return Image(((0, header),), tuple(spans[name][0] for name, _, _ in tensors), size)
