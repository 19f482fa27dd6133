"""Changes of floating-point dtype, rounded to nearest even as PyTorch rounds; a NaN stays a NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Float:
    """A floating-point format."""

    storage: str
    """numpy dtype of its bytes."""
    exponent: int
    """Bits of the exponent."""
    fraction: int
    """Bits of the fraction."""

    def fits(self, other: Float) -> bool:
        """Whether every value of this format is one of the other."""
        return self.exponent <= other.exponent and self.fraction <= other.fraction


FLOATS = {
    "F64": Float("<f8", 11, 52),
    "F32": Float("<f4", 8, 23),
    "F16": Float("<f2", 5, 10),
    "BF16": Float("<u2", 8, 7),
}


def cast(values: npt.NDArray[Any], before: str, after: str) -> npt.NDArray[Any]:
    """Elements of one format, in its storage dtype, in another one.

    All casts go through F32 as in PyTorch; F64 to F16 or BF16 therefore rounds twice there and here.
    """
    if before == after:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        single = _from_bf16(values) if before == "BF16" else values
        if before == "F64" and after != "F32":
            single = single.astype("<f4")
        if after == "BF16":
            return _to_bf16(single.astype("<f4"))
        return single.astype(FLOATS[after].storage)


def _from_bf16(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    wide = values.astype("<u4")
    wide <<= 16
    return wide.view("<f4")


def _to_bf16(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    bits = np.ascontiguousarray(values).view("<u4")
    # Half of the last kept bit, less one where that bit is even, so that a tie goes to the even neighbour.
    rounded = (bits >> 16) & 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    result = rounded.astype("<u2")
    nan = np.isnan(values)
    if nan.any():  # rounding could carry a NaN into the exponent, or cut its fraction to zero
        result[nan] = ((bits[nan] >> 16) | 0x0040).astype("<u2")
    return result
