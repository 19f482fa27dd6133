"""Values for rows of an embedding that the checkpoint does not have, from those that it has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from mappings.formats.floats import FLOATS, cast
from mappings.formats.safetensors import TensorEntry

CHUNK_BYTES = 16 << 20
Kind = Literal["mean", "normal", "zero"]


@dataclass(frozen=True)
class NewRows:
    """How new rows are made."""

    kind: Kind = "mean"
    """`mean`: the mean of the rows that are kept. `normal`: drawn around it with each column's standard deviation.
    `zero`: zeros."""
    seed: int = 0
    """Of `normal`; tensors differ by their names."""

    def make(self, entry: TensorEntry, kept: int, count: int) -> npt.NDArray[Any]:
        """`[count, columns]` in the storage type of the tensor; a vector has one column.

        Statistics are summed in fp64, in pieces of 16 MiB.

        Raises:
            UserError: the tensor holds no floating-point numbers.
        """
        if entry.dtype not in FLOATS:
            raise UserError(
                f"{entry.path}: {entry.name} is {entry.dtype}; rows can be made for {', '.join(FLOATS)} only"
            )
        columns = entry.nbytes // entry.shape[0] // entry.itemsize if entry.shape[0] else 0
        if self.kind == "zero" or not columns or not kept:
            return np.zeros((count, columns), FLOATS[entry.dtype].storage)
        mean, deviation = _statistics(entry, kept, columns)
        rows = np.broadcast_to(mean, (count, columns))
        if self.kind == "normal":
            words = np.frombuffer(entry.name.encode(), np.uint8).tolist()
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *words])))
            rows = mean + deviation * generator.standard_normal((count, columns))
        return cast(np.ascontiguousarray(rows), "F64", entry.dtype)


def _statistics(entry: TensorEntry, kept: int, columns: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Mean and standard deviation of each column over the first rows."""
    storage = FLOATS[entry.dtype].storage
    width = columns * entry.itemsize
    step = max(1, CHUNK_BYTES // width)
    mean, squares, seen = np.zeros(columns), np.zeros(columns), 0
    with entry.path.open("rb") as file:
        for first in range(0, kept, step):
            count = min(step, kept - first)
            raw = os.pread(file.fileno(), count * width, entry.offset + first * width)
            values = cast(np.frombuffer(raw, storage).reshape(count, columns), entry.dtype, "F64")
            # Chan, Golub, LeVeque: pieces joined without the cancellation of sums of squares.
            piece_mean = values.mean(0)
            delta = piece_mean - mean
            squares += ((values - piece_mean) ** 2).sum(0) + delta**2 * (seen * count / (seen + count))
            mean += delta * (count / (seen + count))
            seen += count
    return mean, np.sqrt(squares / seen)
