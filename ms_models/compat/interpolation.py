"""Resizing of the spatial axes as one matrix product per axis, with torch's sampling points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr

_KIND = {"linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize `[N, C, spatial...]` to `size` or by `scale_factor`.

    Modes: `nearest`, `nearest-exact`, `area`, `linear` (3-d), `bilinear`, `bicubic` (4-d), `trilinear` (5-d).

    Raises:
        ValueError: unknown mode, or neither `size` nor `scale_factor`.
    """
    spatial = tuple(input.shape[2:])
    matrices = _matrices(
        spatial, size, scale_factor, mode, bool(align_corners), bool(recompute_scale_factor), antialias
    )
    for i in range(len(spatial)):
        moved = ops.matmul(input.swapaxes(2 + i, -1), matrices[i].astype(input.dtype))
        input = moved.swapaxes(2 + i, -1)
    return input


@constexpr
def _matrices(
    spatial: tuple[int, ...],
    size: Any,
    scale_factor: Any,
    mode: str,
    align_corners: bool,
    recompute: bool,
    antialias: bool,
) -> list[Tensor]:
    """One matrix `[length, size]` for each axis."""
    rank = len(spatial)
    factors: list[float | None] = [None] * rank
    if size is not None:
        sizes = [size] * rank if isinstance(size, int) else list(size)
    elif scale_factor is not None:
        given = [scale_factor] * rank if isinstance(scale_factor, int | float) else list(scale_factor)
        sizes = [math.floor(spatial[i] * given[i]) for i in range(rank)]
        if not recompute:
            factors = [float(f) for f in given]
    else:
        raise ValueError("interpolate needs size or scale_factor")
    axes = [_matrix(spatial[i], sizes[i], factors[i], mode, align_corners, antialias) for i in range(rank)]
    return [Tensor(matrix.T.copy(), ms.float32) for matrix in axes]


def _matrix(
    length: int, size: int, factor: float | None, mode: str, align_corners: bool, antialias: bool
) -> np.ndarray:
    """Weights `[size, length]` of one axis."""
    numbers = np.arange(size)
    scale = length / size if factor is None else 1.0 / factor
    matrix = np.zeros((size, length))
    if mode in ("nearest", "nearest-exact"):
        # torch computes these positions in single precision, which decides ties
        shift = np.float32(0.5 if mode == "nearest-exact" else 0.0)
        places = np.floor((numbers.astype(np.float32) + shift) * np.float32(scale)).astype(int)
        matrix[numbers, np.minimum(places, length - 1)] = 1.0
        return matrix
    if mode == "area":
        for i in range(size):
            first, last = i * length // size, -(-(i + 1) * length // size)
            matrix[i, first:last] = 1.0 / (last - first)
        return matrix
    if mode not in _KIND:
        raise ValueError(f"unknown interpolation mode {mode!r}")
    if align_corners:
        scale = (length - 1) / (size - 1) if size > 1 else 0.0
    kind = _KIND[mode]
    if antialias:
        return _antialiased(length, size, scale, kind, align_corners)
    places = numbers * scale if align_corners else (numbers + 0.5) * scale - 0.5
    if kind == "linear":
        places = np.maximum(places, 0.0)
    base = np.floor(places).astype(int)
    reach: Sequence[int] = (0, 1) if kind == "linear" else (-1, 0, 1, 2)
    for offset in reach:
        weights = _kernel(np.abs(places - base - offset), kind, -0.75)
        np.add.at(matrix, (numbers, np.clip(base + offset, 0, length - 1)), weights)
    return matrix


def _antialiased(length: int, size: int, scale: float, kind: str, align_corners: bool) -> np.ndarray:
    """Kernel widened by the scale when shrinking, normalised over what lies inside."""
    half = 1.0 if kind == "linear" else 2.0
    stretch = max(scale, 1.0)
    matrix = np.zeros((size, length))
    for i in range(size):
        center = scale * i if align_corners else scale * (i + 0.5)
        center = center + 0.5 if align_corners else center
        first = max(int(center - half * stretch + 0.5), 0)
        last = min(int(center + half * stretch + 0.5), length)
        distance = np.abs((np.arange(first, last) - center + 0.5) / stretch)
        weights = _kernel(distance, kind, -0.5)
        matrix[i, first:last] = weights / weights.sum()
    return matrix


def _kernel(distance: np.ndarray, kind: str, a: float) -> np.ndarray:
    """Triangle, or Keys' cubic convolution kernel with parameter `a`."""
    d = distance
    if kind == "linear":
        return np.maximum(1.0 - d, 0.0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
