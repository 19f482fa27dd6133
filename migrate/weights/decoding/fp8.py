"""8-bit floats times a scale per block: `weight` and `weight_scale_inv` of DeepSeek-V3 and of fine-grained FP8.

A scale belongs to a block of rows and columns; blocks at the edges are cut, so a matrix of 130 rows in blocks of 128
has two rows of scales. A scale per row or one for the whole matrix are blocks, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from migrate.weights.decoding.tables import MINIFLOATS, SCALES, Floats, scales, to_bf16, values
from migrate.weights.tensors import Part, Read

EIGHT_BITS = tuple(dtype for dtype in MINIFLOATS if dtype.startswith("F8_"))
PER_ELEMENT = 24
"""Bytes of memory for each element of a row: code, value, scale, product and result."""


@dataclass(frozen=True)
class BlockFp8:
    """A matrix of 8-bit floats with one scale for each block, decoded to BF16 or F32.

    Raises (on construction):
        UserError: no 8-bit floats, or scales that do not fit the matrix and the block.
    """

    weight: Part
    scale: Part
    block: tuple[int, int]
    dtype: str = "BF16"

    def __post_init__(self) -> None:
        shape, size = self.weight.shape, np.prod(self.scale.shape, dtype=int)
        for part, known in ((self.weight, EIGHT_BITS), (self.scale, SCALES)):
            if part.dtype not in known:
                raise UserError(f"{part.path}: tensor {part.name!r}: {part.dtype} is none of {', '.join(known)}")
        if len(shape) != 2 or min(self.block) < 1:
            raise UserError(f"{self.weight.path}: tensor {self.weight.name!r}: no matrix in blocks of {self.block}")
        if self.grid[0] * self.grid[1] != size or (len(self.scale.shape) == 2 and self.scale.shape != self.grid):
            raise UserError(
                f"{self.scale.path}: tensor {self.scale.name!r}: shape {list(self.scale.shape)}, "
                f"{self.weight.name!r} {list(shape)} in blocks of {list(self.block)} needs {list(self.grid)}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of scales."""
        rows, columns = self.weight.shape
        return -(-rows // self.block[0]), -(-columns // self.block[1])

    @property
    def parts(self) -> Sequence[Part]:
        """Codes and scales."""
        return self.weight, self.scale

    @property
    def row_bytes(self) -> int:
        """Memory that decoding one row takes."""
        return self.weight.shape[1] * PER_ELEMENT

    @property
    def note(self) -> str:
        """What happens to the values."""
        return f"{self.weight.dtype} times {self.scale.name.rpartition('.')[2]}, rounded to {self.dtype}"

    def rows(self, start: int, stop: int, read: Read) -> npt.NDArray[np.generic]:
        """Rows `start:stop`: the product in fp32, rounded once."""
        columns = self.weight.shape[1]
        raw = read(self.weight.path, self.weight.offset + start * columns, (stop - start) * columns)
        numbers = values(self.weight.dtype)[np.frombuffer(raw, np.uint8)].reshape(-1, columns)
        of_row = self._scales(read)[np.arange(start, stop) // self.block[0]]
        with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN come out as the arithmetic has them
            numbers *= np.repeat(of_row, self.block[1], axis=1)[:, :columns]
        return to_bf16(numbers) if self.dtype == "BF16" else numbers

    def _scales(self, read: Read) -> Floats:
        raw = np.frombuffer(read(self.scale.path, self.scale.offset, self.scale.nbytes), np.uint8)
        return scales(raw, self.scale.dtype).reshape(self.grid)
