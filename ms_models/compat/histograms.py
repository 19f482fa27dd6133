"""Histograms, counted by numpy; they have no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Number of elements in equal intervals of [min, max], of the range of the data when both are equal."""
    array = input.asnumpy()
    counts, _ = np.histogram(array, bins, _range(array, min, max))
    return Tensor(counts.astype(array.dtype))


def _range(array: Any, low: float, high: float) -> tuple[float, float]:
    if low == high and array.size:
        low, high = float(array.min()), float(array.max())
    return (low - 1, high + 1) if low == high else (low, high)


def histogram(
    input: Tensor, bins: Any, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Counts (or weights, or a density) per interval, and the edges; `bins` is a number or the edges."""
    array = input.asnumpy().reshape(-1)
    edges = bins.asnumpy() if isinstance(bins, Tensor) else bins
    weights = None if weight is None else weight.asnumpy().reshape(-1)
    counts, edges = np.histogram(array, edges, None if range is None else tuple(range), density, weights)
    return Tensor(counts.astype(array.dtype)), Tensor(edges.astype(array.dtype))


def histogramdd(
    input: Tensor, bins: Any, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Counts in boxes of the space of the last axis, and the edges along each of its coordinates."""
    array = input.asnumpy()
    points = array.reshape(-1, array.shape[-1])
    edges = [b.asnumpy() if isinstance(b, Tensor) else b for b in bins] if isinstance(bins, list | tuple) else bins
    limits: Any = None if range is None else np.array(range, dtype=np.float64).reshape(-1, 2).tolist()
    weights = None if weight is None else weight.asnumpy().reshape(-1)
    counts, found = np.histogramdd(points.astype(np.float64), edges, limits, density, weights)
    return Tensor(counts.astype(array.dtype)), tuple([Tensor(e.astype(array.dtype)) for e in found])
