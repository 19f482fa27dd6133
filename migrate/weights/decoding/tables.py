"""What each code of a small floating-point format means, computed from its definition, and rounding to BF16.

Formats: E4M3 and E5M2 (OCP 8-bit floating point, revision 1.0; E4M3 is the "FN" one: no infinity, one NaN per sign),
their FNUZ variants (no infinity, no negative zero, one NaN, bias one higher); E2M1 and E8M0 (OCP microscaling, 1.0).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.unsignedinteger]

# dtype: (exponent bits, mantissa bits, bias)
MINIFLOATS = {
    "F8_E4M3": (4, 3, 7),
    "F8_E5M2": (5, 2, 15),
    "F8_E4M3FNUZ": (4, 3, 8),
    "F8_E5M2FNUZ": (5, 2, 16),
    "F4": (2, 1, 1),
}
SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""Dtypes in which scales are stored."""
QUIET = 0x0040  # the bit that makes a BF16 NaN a quiet one


@cache
def values(dtype: str) -> Floats:
    """The value of every code of a format, as fp32, which holds them all exactly.

    Args:
        dtype: a key of `MINIFLOATS`, or `F8_E8M0` (a power of two, 255 is NaN).
    """
    if dtype == "F8_E8M0":
        table = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.nan).astype(np.float32)
    else:
        exponent_bits, mantissa_bits, bias = MINIFLOATS[dtype]
        codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
        sign = np.where(codes >> (exponent_bits + mantissa_bits), -1, 1)
        exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = codes & ((1 << mantissa_bits) - 1)
        fraction = mantissa + np.where(exponent > 0, 1 << mantissa_bits, 0)
        power = np.maximum(exponent, 1) - bias - mantissa_bits
        table = (sign * np.ldexp(fraction.astype(np.float64), power)).astype(np.float32)
        _special(dtype, table)
    table.setflags(write=False)
    return table


def _special(dtype: str, table: Floats) -> None:
    """Infinities and NaNs, where the format has them."""
    half = len(table) // 2
    if dtype == "F8_E4M3":
        table[[half - 1, -1]] = np.nan
    elif dtype == "F8_E5M2":
        table[half - 4], table[-4] = np.inf, -np.inf
        table[half - 3 : half], table[-3:] = np.nan, np.nan
    elif dtype.endswith("FNUZ"):
        table[half] = np.nan  # the place of the negative zero


def to_bf16(numbers: Floats) -> npt.NDArray[np.uint16]:
    """Bits of the nearest BF16 of each fp32 number, ties to the even one; NaN stays a (quiet) NaN of its sign."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = bits + (0x7FFF + ((bits >> 16) & 1))
    result = (rounded >> 16).astype(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if nan.any():
        result[nan] = (bits[nan] >> 16).astype(np.uint16) | QUIET
    return result


def from_bf16(raw: npt.NDArray[np.uint8]) -> Floats:
    """BF16 numbers (their bytes) as fp32, which holds them all: the upper half of its bits."""
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def scales(raw: npt.NDArray[np.uint8], dtype: str) -> Floats:
    """Stored scales (their bytes) as fp32 numbers.

    Raises:
        ValueError: no format of scales.
    """
    if dtype == "F32":
        return raw.view("<f4")
    if dtype == "BF16":
        return from_bf16(raw)
    if dtype == "F16":
        return raw.view("<f2").astype(np.float32)
    if dtype in ("F8_E8M0", "U8"):
        return values("F8_E8M0")[raw]
    raise ValueError(f"scales of dtype {dtype} are not known")
