"""Pooling over windows for one to three axes, with every option of torch.

Each output gathers the elements of its window, so one function serves maxima, averages, strides, dilation, padding
and ragged last windows. The positions depend on shapes only and are computed on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr

Size = int | Sequence[int]


def per_axis(value: Size, rank: int) -> tuple[int, ...]:
    """One number for every spatial axis; a number stands for all of them."""
    if isinstance(value, int):
        return (value,) * rank
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _strides(stride: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    return kernel if stride is None or stride in ((), []) else per_axis(stride, len(kernel))


@constexpr
def _plan(
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor, bool]:
    """Windows of a pooling: see `_joined`; the sizes include padding but not what `ceil_mode` adds beyond it."""
    axes, sizes = [], np.ones(1, np.int64)
    for i in range(len(spatial)):
        length, steps, pad = spatial[i], stride[i], padding[i]
        room = length + 2 * pad - dilation[i] * (kernel[i] - 1) - 1
        count = (-(-room // steps) if ceil_mode else room // steps) + 1
        if ceil_mode and (count - 1) * steps >= length + pad:
            count -= 1  # the last window must start inside the input or the left padding
        starts = np.arange(count) * steps - pad
        positions = starts[:, None] + np.arange(kernel[i]) * dilation[i]
        axes.append(np.where((positions < 0) | (positions >= length), -1, positions))
        sizes = (sizes[:, None] * (np.minimum(starts + kernel[i], length + pad) - starts)).reshape(-1)
    return _joined(axes, spatial, sizes)


@constexpr
def _adaptive_plan(
    spatial: tuple[int, ...], output_size: tuple[int | None, ...]
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor, bool]:
    """The windows `[floor(i L / O), ceil((i + 1) L / O))` on each axis, filled up with -1."""
    axes = []
    for i in range(len(spatial)):
        length, wanted = spatial[i], output_size[i]
        size = length if wanted is None else wanted
        numbers = np.arange(size)
        starts, ends = numbers * length // max(size, 1), -(-(numbers + 1) * length // max(size, 1))
        positions = starts[:, None] + np.arange(max(1, int((ends - starts).max(initial=1))))
        axes.append(np.where(positions < ends[:, None], positions, -1))
    return _joined(axes, spatial, np.ones(1, np.int64))


def _joined(
    axes: Sequence[np.ndarray], lengths: Sequence[int], sizes: np.ndarray
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor, bool]:
    """Output shape, flat positions `[out, window]`, which of them count `[out, window]`, `sizes`, whether all count."""
    flat, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for i in range(len(axes)):
        positions = axes[i]
        flat = flat[:, None, :, None] * lengths[i] + np.maximum(positions, 0)[None, :, None, :]
        inside = inside[:, None, :, None] & (positions >= 0)[None, :, None, :]
        flat = flat.reshape(flat.shape[0] * flat.shape[1], -1)
        inside = inside.reshape(flat.shape)
    shape = tuple(len(positions) for positions in axes)
    return shape, Tensor(flat), Tensor(inside), Tensor(sizes), bool(inside.all())


def _gathered(input: Tensor, rank: int, positions: Tensor) -> Tensor:
    """Elements `[rows, out, window]`."""
    rows = input.reshape((-1, int(np.prod(input.shape[input.ndim - rank :]))))
    taken = ops.gather(rows, positions.reshape(-1), 1)
    return taken.reshape((rows.shape[0], *positions.shape))


def _maximum(input: Tensor, rank: int, plan: Any, return_indices: bool) -> Any:
    size, positions, inside, _, complete = plan
    shape = (*input.shape[: input.ndim - rank], *size)
    if input.size == 0:
        empty = ops.zeros(shape, dtype=input.dtype)
        return (empty, ops.zeros(shape, dtype=ms.int64)) if return_indices else empty
    taken = _gathered(input, rank, positions)
    if not complete:
        taken = ops.where(inside, taken, ops.full_like(taken, -float("inf")))
    values, places = ops.max(taken, -1)
    if not return_indices:
        return values.reshape(shape)
    table = ops.broadcast_to(positions, (values.shape[0], *positions.shape))
    indices = ops.gather_elements(table, 2, places.astype(ms.int64).expand_dims(-1))
    return values.reshape(shape), indices.reshape(shape)


def max_pool(
    input: Tensor,
    rank: int,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window over the last `rank` axes, on request with its flat position in them."""
    kernel = per_axis(kernel_size, rank)
    spatial = tuple(input.shape[input.ndim - rank :])
    pads, gaps = per_axis(padding, rank), per_axis(dilation, rank)
    plan = _plan(spatial, kernel, _strides(stride, kernel), pads, gaps, ceil_mode)
    return _maximum(input, rank, plan, return_indices)


def avg_pool(
    input: Tensor,
    rank: int,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Average of each window over the last `rank` axes; padding counts as zeros, or not at all."""
    kernel = per_axis(kernel_size, rank)
    spatial = tuple(input.shape[input.ndim - rank :])
    plan = _plan(spatial, kernel, _strides(stride, kernel), per_axis(padding, rank), (1,) * rank, ceil_mode)
    return _mean(input, rank, plan, count_include_pad, divisor_override)


def _mean(input: Tensor, rank: int, plan: Any, by_size: bool, divisor: int | None = None) -> Tensor:
    size, positions, inside, sizes, complete = plan
    shape = (*input.shape[: input.ndim - rank], *size)
    if input.size == 0 or positions.size == 0:
        return ops.zeros(shape, dtype=input.dtype)
    taken = _gathered(input, rank, positions)
    if not complete:
        taken = ops.where(inside, taken, ops.zeros_like(taken))
    sums = taken.sum(-1)
    if divisor is not None:
        return sums.reshape(shape) / divisor
    counts = sizes if by_size else inside.astype(ms.int32).sum(-1)
    return (sums / counts.astype(input.dtype)).reshape(shape)


def _sizes(output_size: Any, rank: int) -> tuple[int | None, ...]:
    if output_size is None or isinstance(output_size, int):
        return (output_size,) * rank
    return tuple(output_size) * rank if len(output_size) == 1 else tuple(output_size)


def adaptive_max_pool(input: Tensor, rank: int, output_size: Any, return_indices: bool = False) -> Any:
    """Maxima over windows that divide each axis into `output_size` parts; None keeps the axis."""
    plan = _adaptive_plan(tuple(input.shape[input.ndim - rank :]), _sizes(output_size, rank))
    return _maximum(input, rank, plan, return_indices)


def adaptive_avg_pool(input: Tensor, rank: int, output_size: Any) -> Tensor:
    """Averages over windows that divide each axis into `output_size` parts; None keeps the axis."""
    plan = _adaptive_plan(tuple(input.shape[input.ndim - rank :]), _sizes(output_size, rank))
    return _mean(input, rank, plan, False)


def max_unpool(
    input: Tensor,
    indices: Tensor,
    rank: int,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts `input` back at the flat positions `indices` of a zero tensor with the size before pooling."""
    lead, spatial = input.shape[: input.ndim - rank], input.shape[input.ndim - rank :]
    kernel = per_axis(kernel_size, rank)
    steps, pads = _strides(stride, kernel), per_axis(padding, rank)
    if output_size is None:
        size = tuple([(spatial[i] - 1) * steps[i] - 2 * pads[i] + kernel[i] for i in range(rank)])
    else:
        size = tuple(output_size)[-rank:]
    zeros = ops.zeros((int(np.prod(lead)), int(np.prod(size))), dtype=input.dtype)
    places, values = indices.reshape((zeros.shape[0], -1)), input.reshape((zeros.shape[0], -1))
    filled = ops.tensor_scatter_elements(zeros, places, values, 1)
    return filled.reshape((*lead, *size))


def lp_pool(
    input: Tensor,
    rank: int,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """`(sum x^p)^(1/p)` over each window."""
    kernel = per_axis(kernel_size, rank)
    means = avg_pool(ops.pow(input, norm_type), rank, kernel, stride, 0, ceil_mode)
    count = int(np.prod(kernel))
    return ops.pow(ops.sign(means) * ops.relu(ops.abs(means)) * count, 1.0 / norm_type)
