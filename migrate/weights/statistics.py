"""What the numbers of a stored tensor are like: NaN, Inf, range, moments, a histogram of magnitudes; block by block."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from mappings.formats.safetensors import DTYPE_BITS
from migrate.weights.decoding.tables import MINIFLOATS, from_bf16, values

CHUNK = 8 << 20  # bytes read at a time; a multiple of every item size
PLAIN = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "<u1",
    "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "<u1",
}  # fmt: skip
FLOATS = frozenset({"F16", "F32", "F64", "BF16", "F8_E8M0", *MINIFLOATS} - {"F4"})
BARS = " .:-=+*#%@"


@dataclass
class Statistics:
    """Of the finite numbers of a tensor, except for the counts of the others."""

    elements: int = 0
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    minimum: float | None = None
    maximum: float | None = None
    mean: float = 0.0
    deviation: float = 0.0
    """Standard deviation, of the population."""
    magnitudes: dict[int, int] = field(default_factory=dict)
    """How many numbers lie in [2^n, 2^(n+1)) or its negative, by n."""

    def bars(self, width: int = 16) -> str:
        """The histogram in characters, the least magnitude first; the fullest bin is the last of `BARS`."""
        if not self.magnitudes:
            return ""
        low, high = min(self.magnitudes), max(self.magnitudes)
        per_bin = -(-(high - low + 1) // width)
        bins = [0] * (-(-(high - low + 1) // per_bin))
        for power, count in self.magnitudes.items():
            bins[(power - low) // per_bin] += count
        top = max(bins)
        text = "".join(BARS[-(-count * (len(BARS) - 1) // top)] for count in bins)
        return f"2^{low} {text} 2^{high + 1}"


def statistics(path: Path, dtype: str, spans: Sequence[tuple[int, int]], name: str) -> Statistics | None:
    """Reads a tensor once, in blocks; None for dtypes whose elements are no whole bytes or no real numbers.

    Args:
        path: file.
        dtype: safetensors' spelling.
        spans: (first byte, bytes) of its parts, in order; most tensors have one.
        name: of the tensor, for the message.

    Raises:
        UserError: the file became shorter than its header says.
    """
    if dtype not in PLAIN and dtype not in FLOATS:
        return None
    result = Statistics()
    size = DTYPE_BITS[dtype] // 8
    squares = 0.0  # sum of squared distances from the mean
    fd = os.open(path, os.O_RDONLY)
    try:
        for offset, nbytes in spans:
            done = 0
            while done < nbytes:
                data = os.pread(fd, min(CHUNK, nbytes - done), offset + done)
                data = data[: len(data) - len(data) % size]
                if not data:
                    raise UserError(f"{path}: tensor {name!r}: ends {nbytes - done} bytes early")
                with np.errstate(invalid="ignore", over="ignore"):  # signalling NaN; squares of the largest F64
                    squares = _add(result, _numbers(data, dtype), squares)
                done += len(data)
    finally:
        os.close(fd)
    finite = result.elements - result.nan - result.inf
    result.deviation = (squares / finite) ** 0.5 if finite else 0.0
    return result


def _numbers(data: bytes, dtype: str) -> npt.NDArray[np.float64]:
    if dtype == "BF16":
        return from_bf16(np.frombuffer(data, np.uint8)).astype(np.float64)
    if dtype in PLAIN:
        return np.frombuffer(data, PLAIN[dtype]).astype(np.float64)
    return values(dtype)[np.frombuffer(data, np.uint8)].astype(np.float64)


def _add(total: Statistics, block: npt.NDArray[np.float64], squares: float) -> float:
    """Adds a block; means and squared distances are combined pairwise, which keeps them exact to rounding."""
    nan, inf = int(np.isnan(block).sum()), int(np.isinf(block).sum())
    before = total.elements - total.nan - total.inf
    total.elements += block.size
    total.nan += nan
    total.inf += inf
    finite = block[np.isfinite(block)] if nan or inf else block
    if not finite.size:
        return squares
    low, high = float(finite.min()), float(finite.max())
    total.minimum = low if total.minimum is None else min(total.minimum, low)
    total.maximum = high if total.maximum is None else max(total.maximum, high)
    mean = float(finite.mean())
    shift, count = mean - total.mean, before + finite.size
    squares += float(np.square(finite - mean).sum()) + shift * shift * before * finite.size / count
    total.mean += shift * finite.size / count
    numbers = finite[finite != 0]
    total.zeros += finite.size - numbers.size
    for power, number in _powers(numbers).items():
        total.magnitudes[power] = total.magnitudes.get(power, 0) + number
    return squares


def _powers(numbers: npt.NDArray[np.float64]) -> dict[int, int]:
    """Counts by exponent, read off the bits; only subnormals of F64 have to be looked at one by one."""
    counts = np.bincount(((numbers.view(np.uint64) >> 52) & 0x7FF).astype(np.int64), minlength=2048)
    result = {int(bits) - 1023: int(counts[bits]) for bits in np.flatnonzero(counts) if bits}
    if counts[0]:
        small = np.frexp(numbers[np.abs(numbers) < np.finfo(np.float64).tiny])[1] - 1
        for power, number in zip(*np.unique(small, return_counts=True), strict=True):
            result[int(power)] = result.get(int(power), 0) + int(number)
    return result
