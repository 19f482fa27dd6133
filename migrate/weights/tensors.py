"""What containers and the copy engine say to each other: tensors that exist, and tensors that shall exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mappings.arrangement import Arrangement, Shape
from mappings.families import Family
from mappings.formats.safetensors import TensorEntry
from migrate.report import Finding

Read = Callable[[Path, int, int], memoryview]
"""Bytes of a file: (path, offset, count). Opens files as needed and raises OSError where one became shorter."""


@dataclass(frozen=True)
class Part:
    """A stored array that a decoder reads: values, scales."""

    path: Path
    name: str
    dtype: str
    shape: Shape
    offset: int
    """First byte in the file."""
    nbytes: int


class Decoder(Protocol):
    """Elements that no file holds as they are, computed row by row while they are copied.

    A *row* is everything along the last axis of the decoded tensor; rows are counted over all other axes together, the
    last of them fastest.
    """

    @property
    def parts(self) -> Sequence[Part]:
        """All that is read, for the account of source tensors."""

    @property
    def row_bytes(self) -> int:
        """Memory that decoding one row takes, inputs, intermediate values and result together."""

    @property
    def note(self) -> str:
        """What happens to the values, for the report: `F8_E4M3 times weight_scale_inv, rounded to BF16`."""

    def rows(self, start: int, stop: int, read: Read) -> npt.NDArray[np.generic]:
        """Rows `start:stop`, contiguous, of an itemsize that fits the dtype of the decoded tensor (BF16: uint16)."""


@dataclass(frozen=True)
class Stored:
    """A tensor that exists, or shall exist, in a file."""

    file: str
    """Path relative to the directory of the checkpoint."""
    name: str
    dtype: str
    """The safetensors spelling, see `mappings.formats.safetensors.DTYPE_BITS`."""
    arrangement: Arrangement


@dataclass(frozen=True)
class SourceTensor:
    """A tensor with bytes. `stored` describes the decoded elements where there is a decoder."""

    stored: Stored
    path: Path
    offset: int
    """First byte in the file."""
    decoder: Decoder | None = None
    """None: the elements are the bytes of the file."""
    is_view: bool = False
    """Whether it is a view of other memory: what lies between its elements is then no padding."""


@dataclass(frozen=True)
class TargetFile:
    """A file to write."""

    name: str
    """Path relative to the output directory."""
    tensors: tuple[Stored, ...]
    """In storage order."""
    metadata: Mapping[str, str]
    form: str = "safetensors"
    """Or `ckpt`: MindSpore's protobuf."""


@dataclass(frozen=True)
class Checkpoint:
    """What the reader of a container found, from headers alone."""

    directory: Path
    container: str
    """`hf`, `sharded`, `mindspore`, `strategy`, `iteration`, `ckpt`, `pickle` or `table`."""
    family: Family | None
    config: Mapping[str, Any]
    atoms: Mapping[str, Shape]
    """Every atom the model has."""
    tensors: tuple[SourceTensor, ...]
    findings: tuple[Finding, ...]
    """Everything that is wrong or noteworthy, all of it at once."""
    left_out: tuple[TensorEntry, ...]
    """Allowed extras, which the report lists."""
    extra: Mapping[str, Any]
    """What only this container knows: manifest, strategy, names of side files, record of the source."""
