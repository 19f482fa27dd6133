"""`AdaptedOrigin`: what stands beside the weights of an adapted model in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn

from mappings.formats.safetensors import build_header
from ms_models.train.adapter.tensors import FILE, Tensors

BUFFERS = "buffers.safetensors"
"""Name of the file of tensors that are part of the state of the model, but not trained."""
DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class AdaptedOrigin:
    """Where an adapted model comes from."""

    tensors: Tensors
    buffers: Mapping[str, np.ndarray]
    """Those that are saved with the model, by name."""

    def side_files(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file beside the weights."""
        yield FILE, self.tensors.dump()
        if self.buffers:
            layout = [(name, DTYPES[str(value.dtype)], value.shape) for name, value in self.buffers.items()]
            header, _ = build_header(layout, {"format": "pt"})
            yield BUFFERS, header + b"".join(np.ascontiguousarray(value).tobytes() for value in self.buffers.values())


def find_buffers(cell: nn.Cell, prefix: str = "") -> Iterator[tuple[str, nn.Cell, str]]:
    """Name, cell and key of every buffer that is saved with a model."""
    passing = getattr(cell, "_non_persistent_buffers_set", ())
    for key, buffer in cell._buffers.items():
        if buffer is not None and key not in passing:
            yield f"{prefix}{key}", cell, key
    for key, child in cell._cells.items():
        if child is not None:
            yield from find_buffers(child, f"{prefix}{key}.")


def read_buffers(module: nn.Cell) -> dict[str, np.ndarray]:
    """Copies of them by name."""
    return {name: _plain(cell, key) for name, cell, key in find_buffers(module)}


def _plain(cell: nn.Cell, key: str) -> np.ndarray:
    buffer = cell._buffers[key]
    wide = buffer.astype(ms.float32) if buffer.dtype == ms.bfloat16 else buffer  # numpy knows no bf16
    return np.array(wide.asnumpy())
