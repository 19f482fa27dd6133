"""Convolutions over one to three axes with torch's arguments, and their transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, ops

from .pooling import Size, per_axis


def conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation.

    Args:
        input: `[N, C, spatial...]` or `[C, spatial...]`.
        weight: `[out, C / groups, kernel...]`; its rank says how many spatial axes there are.
        bias: `[out]`.
        stride: step, one for all axes or one each; `padding` (also `valid`, `same`) and `dilation` alike.
        groups: number of groups of channels.
    """
    rank = weight.ndim - 2
    steps, gaps = per_axis(stride, rank), per_axis(dilation, rank)
    x, batched = _batch(input, rank)
    x = _padded(x, widths(padding, weight.shape[2:], gaps))
    if rank == 1:
        x, w = x.expand_dims(2), weight.expand_dims(2)
        result = _conv2d(x, w, (1, *steps), (1, *gaps), groups).squeeze(2)
    elif rank == 2:
        result = _conv2d(x, weight, steps, gaps, groups)
    else:
        result = _conv3d(x, weight, steps, gaps, groups)
    if bias is not None:
        result = result + bias.reshape((1, -1, *[1] * rank))
    return result if batched else result.squeeze(0)


def _batch(input: Tensor, rank: int) -> tuple[Tensor, bool]:
    """The input with a batch axis, and whether it had one."""
    batched = input.ndim == rank + 2
    return input if batched else input.expand_dims(0), batched


def widths(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """How much is added before and after each axis; `same` keeps the length, the odd one goes to the end."""
    rank = len(kernel)
    if not isinstance(padding, str):
        return [(n, n) for n in per_axis(padding, rank)]
    if padding not in ("same", "valid"):
        raise ValueError(f"padding {padding!r} is none of 'same', 'valid' and numbers")
    total = [dilation[i] * (kernel[i] - 1) if padding == "same" else 0 for i in range(rank)]
    return [(n // 2, n - n // 2) for n in total]


def _padded(x: Tensor, edges: Sequence[tuple[int, int]]) -> Tensor:
    for i in range(len(edges)):
        left, right = edges[i]
        if left or right:
            axis = 2 + i
            parts = [x]
            if left:
                parts = [ops.zeros((*x.shape[:axis], left, *x.shape[axis + 1 :]), dtype=x.dtype), *parts]
            if right:
                parts = [*parts, ops.zeros((*x.shape[:axis], right, *x.shape[axis + 1 :]), dtype=x.dtype)]
            x = ops.cat(parts, axis)
    return x


def _conv2d(x: Tensor, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int) -> Tensor:
    return ops.conv2d(x, weight, None, stride, "valid", 0, dilation, groups)


def _conv3d(x: Tensor, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int) -> Tensor:
    """One depth slice of the kernel at a time: the CPU has no kernel for groups or dilation over three axes."""
    depth = weight.shape[2]
    out = (x.shape[2] - dilation[0] * (depth - 1) - 1) // stride[0] + 1
    batch, channels = x.shape[:2]
    parts = []
    for k in range(depth):
        first = k * dilation[0]
        planes = [x.narrow(2, first + i * stride[0], 1) for i in range(out)]
        rows = ops.cat(planes, 2).swapaxes(1, 2).reshape((batch * out, channels, *x.shape[3:]))
        parts.append(_conv2d(rows, weight.narrow(2, k, 1).squeeze(2), stride[1:], dilation[1:], groups))
    total = sum(parts[1:], parts[0])
    return total.reshape((batch, out, *total.shape[1:])).swapaxes(1, 2)


def conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Transposed convolution, as a convolution with the mirrored kernel of the input spread out by `stride`.

    Args:
        weight: `[C, out / groups, kernel...]`.
        output_padding: how much longer each axis of the result is at its end.
    """
    rank = weight.ndim - 2
    steps, pads = per_axis(stride, rank), per_axis(padding, rank)
    extra, gaps = per_axis(output_padding, rank), per_axis(dilation, rank)
    x, batched = _batch(input, rank)
    edges, cuts = [], []
    for i in range(rank):
        x = _spread(x, 2 + i, steps[i])
        edge = gaps[i] * (weight.shape[2 + i] - 1) - pads[i]
        edges.append((max(edge, 0), max(edge + extra[i], 0)))
        cuts.append((max(-edge, 0), max(-edge - extra[i], 0)))
    for i in range(rank):
        first, last = cuts[i]
        if first or last:
            x = x.narrow(2 + i, first, x.shape[2 + i] - first - last)
    w = weight.reshape((groups, weight.shape[0] // groups, *weight.shape[1:])).swapaxes(1, 2)
    w = ops.flip(w.reshape((-1, *w.shape[2:])), tuple(range(2, 2 + rank)))
    result = conv(_padded(x, edges), w, bias, 1, 0, dilation, groups)
    return result if batched else result.squeeze(0)


def _spread(x: Tensor, axis: int, step: int) -> Tensor:
    """`step - 1` zeros between the elements of an axis."""
    if step == 1:
        return x
    length = x.shape[axis]
    zeros = ops.zeros((*x.shape[: axis + 1], step - 1, *x.shape[axis + 1 :]), dtype=x.dtype)
    wide = ops.cat([x.expand_dims(axis + 1), zeros], axis + 1)
    wide = wide.reshape((*x.shape[:axis], length * step, *x.shape[axis + 1 :]))
    return wide.narrow(axis, 0, (length - 1) * step + 1)
