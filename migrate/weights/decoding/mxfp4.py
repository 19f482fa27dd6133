"""MXFP4: 4-bit floats in blocks of 32 with a shared power of two, two codes per byte, the low one first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from migrate.weights.decoding.tables import to_bf16, values
from migrate.weights.tensors import Part, Read

BLOCK = 32


@cache
def _products() -> npt.NDArray[np.uint32]:
    """BF16 bits of both codes of a byte under a scale: [scale, byte], the low code in the lower half.

    Every product is exact: a code has two significant bits, and BF16 has the exponents of fp32.
    """
    with np.errstate(over="ignore"):  # 6 * 2^127 is infinite in BF16, as in torch
        bits = to_bf16(values("F4")[None, :] * values("F8_E8M0")[:, None]).astype(np.uint32)
    byte = np.arange(256)
    table: npt.NDArray[np.uint32] = bits[:, byte & 15] | (bits[:, byte >> 4] << np.uint32(16))
    table.setflags(write=False)
    return table


@dataclass(frozen=True)
class Mxfp4:
    """Blocks `[..., groups, 16]` and scales `[..., groups]`, decoded to BF16 of shape `[..., groups * 32]`.

    Raises (on construction):
        UserError: blocks and scales do not fit.
    """

    blocks: Part
    scales: Part

    def __post_init__(self) -> None:
        shape = self.blocks.shape
        if len(shape) < 2 or shape[-1] != BLOCK // 2 or {self.blocks.dtype, self.scales.dtype} - {"U8", "F8_E8M0"}:
            raise UserError(
                f"{self.blocks.path}: tensor {self.blocks.name!r}: "
                f"{self.blocks.dtype} {list(shape)} are no MXFP4 blocks"
            )
        if self.scales.shape != shape[:-1]:
            raise UserError(
                f"{self.scales.path}: tensor {self.scales.name!r}: shape {list(self.scales.shape)}, "
                f"{self.blocks.name!r} needs {list(shape[:-1])}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the decoded tensor."""
        return (*self.blocks.shape[:-2], self.blocks.shape[-2] * BLOCK)

    @property
    def parts(self) -> Sequence[Part]:
        """Codes and scales."""
        return self.blocks, self.scales

    @property
    def row_bytes(self) -> int:
        """Memory that decoding one row takes: bytes, scales, indices and results."""
        return self.blocks.shape[-2] * (BLOCK // 2) * 24

    @property
    def note(self) -> str:
        """What happens to the values."""
        return "MXFP4 to BF16, exact"

    def rows(self, start: int, stop: int, read: Read) -> npt.NDArray[np.generic]:
        """Rows `start:stop` of the decoded tensor."""
        groups = self.blocks.shape[-2]
        count = stop - start
        width = groups * BLOCK // 2
        codes = np.frombuffer(read(self.blocks.path, self.blocks.offset + start * width, count * width), np.uint8)
        scale = np.frombuffer(read(self.scales.path, self.scales.offset + start * groups, count * groups), np.uint8)
        pairs = _products()[scale.reshape(-1, 1), codes.reshape(-1, BLOCK // 2)]
        return pairs.astype("<u4", copy=False).view("<u2").reshape(count, groups * BLOCK)
