"""Sampling of images and volumes at given points, with torch's modes, padding and gradients."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Values of `input` at the points of `grid`.

    Args:
        input: `[N, C, H, W]` or `[N, C, D, H, W]`.
        grid: `[N, H', W', 2]` or `[N, D', H', W', 3]`: x, y (, z) in [-1, 1] over the extent of the input.
        mode: `bilinear`, `nearest` (halves go to even) or, for images, `bicubic`.
        padding_mode: outside the input `zeros`, the `border` or the input reflected.
        align_corners: whether -1 and 1 are the centres of the outer elements, not their outer edges.

    Raises:
        ValueError: unknown mode, or shapes that do not fit.
    """
    rank = input.ndim - 2
    if mode not in _MODES or padding_mode not in _PADDINGS or (mode == "bicubic" and rank != 2):
        raise ValueError(f"grid_sample: no mode {mode!r} with padding {padding_mode!r} for an input with {rank} axes")
    if rank not in (2, 3) or grid.ndim != input.ndim or grid.shape[-1] != rank or grid.shape[0] != input.shape[0]:
        raise ValueError(f"grid_sample: a grid {grid.shape} does not fit an input {input.shape}")
    sizes, aligned = input.shape[2:], bool(align_corners)
    points: tuple[Tensor, ...] = ()  # tuples, not lists: ms.jit makes cycles of lists that grow in a loop
    for i in range(rank):
        half = (grid[..., rank - 1 - i].reshape(grid.shape[0], -1) + 1.0) * 0.5
        point = half * (sizes[i] - 1) if aligned else half * sizes[i] - 0.5
        if mode != "bicubic":
            point = _inside(point, sizes[i], padding_mode, aligned)
        points = (*points, _cut(point, -4.0, sizes[i] + 4.0))  # so that positions far outside fit an integer
    result = ops.zeros((input.shape[0], input.shape[1], points[0].shape[1]), dtype=input.dtype)
    if mode == "nearest":
        result = result + _at(input, tuple([ops.round(ops.stop_gradient(p)) for p in points]))
    else:
        taps = tuple([_linear_taps(p) if mode == "bilinear" else _cubic_taps(p) for p in points])
        each = 2 if mode == "bilinear" else 4
        for number in range(each**rank):
            weight = ops.ones_like(points[0])
            places: tuple[Tensor, ...] = ()
            for i in range(rank):
                place, share = taps[i][number // each**i % each]
                if mode == "bicubic":
                    place = _inside(place, sizes[i], padding_mode, aligned)
                places = (*places, place)
                weight = weight * share
            result = result + _at(input, places) * weight.expand_dims(1)
    return result.reshape(input.shape[:2] + grid.shape[1:-1])


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`grid_sample` with modes as numbers."""
    return grid_sample(input, grid, _MODES[interpolation_mode], _PADDINGS[padding_mode], align_corners)


def _cut(point: Tensor, low: float, high: float) -> Tensor:
    """Limit to a range; no gradient on its ends, as in torch."""
    cut = ops.where(point <= low, ops.full_like(point, low), point)
    return ops.where(cut >= high, ops.full_like(point, high), cut)


def _inside(point: Tensor, size: int, padding_mode: str, aligned: bool) -> Tensor:
    """The position whose element is used."""
    if padding_mode == "zeros":
        return point
    if padding_mode == "reflection":
        low, span = (0.0, float(size - 1)) if aligned else (-0.5, float(size))
        if span == 0.0:
            return ops.zeros_like(point)
        away = ops.abs(point - low)
        turns = ops.floor(ops.stop_gradient(away) / span)
        rest = away - turns * span
        point = ops.where(turns % 2 == 0, rest, span - rest) + low
    return _cut(point, 0.0, float(size - 1))


def _linear_taps(point: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    low = ops.floor(ops.stop_gradient(point))
    share = point - low
    return ((low, 1.0 - share), (low + 1.0, share))


def _cubic_taps(point: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """Keys' cubic convolution with a = -0.75."""
    low = ops.floor(ops.stop_gradient(point))
    t = point - low
    taps: tuple[tuple[Tensor, Tensor], ...] = ()
    for step in (-1, 0, 1, 2):
        x = t - step if step < 1 else step - t
        if step in (0, 1):
            share = (1.25 * x - 2.25) * x * x + 1.0
        else:
            share = ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0
        taps = (*taps, (low + float(step), share))
    return taps


def _at(input: Tensor, places: Any) -> Tensor:
    """Elements `[N, C, Q]` at whole positions `[N, Q]` for each axis, 0 outside."""
    sizes = input.shape[2:]
    flat = ops.zeros(places[0].shape, dtype=ms.int64)
    valid = flat == 0
    for i in range(len(sizes)):
        place = ops.stop_gradient(places[i])
        valid = ops.logical_and(valid, ops.logical_and(place >= 0, place <= sizes[i] - 1))
        flat = flat * sizes[i] + _cut(place, 0.0, float(sizes[i] - 1)).astype(ms.int64)
    shape = (input.shape[0], input.shape[1], places[0].shape[1])
    values = input.reshape(input.shape[0], input.shape[1], -1)
    picked = ops.gather_elements(values, 2, ops.broadcast_to(flat.expand_dims(1), shape))
    return ops.where(ops.broadcast_to(valid.expand_dims(1), shape), picked, ops.zeros_like(picked))
