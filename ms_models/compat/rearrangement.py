"""Sliding blocks as columns (`unfold`) and back (`fold`), and the rearrangements of channels into space."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr

from .pooling import Size, per_axis
from .products import matmul


@constexpr
def _places(
    size: tuple[int, ...], k: tuple[int, ...], d: tuple[int, ...], p: tuple[int, ...], s: tuple[int, ...]
) -> Tensor:
    """Flat positions `[kernel elements, blocks]` in the padded image, from kernel, dilation, padding and stride."""
    axes = []
    for i in range(2):
        count = (size[i] + 2 * p[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1
        axes.append(np.arange(k[i])[:, None] * d[i] + np.arange(count)[None, :] * s[i])
    flat = axes[0][:, None, :, None] * (size[1] + 2 * p[1]) + axes[1][None, :, None, :]
    return Tensor(flat.reshape(flat.shape[0] * flat.shape[1], -1))


def _columns(size: tuple[int, ...], kernel: Size, dilation: Size, padding: Size, stride: Size) -> Tensor:
    return _places(size, per_axis(kernel, 2), per_axis(dilation, 2), per_axis(padding, 2), per_axis(stride, 2))


def unfold(input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Tensor:
    """Blocks of `[N, C, H, W]` or `[C, H, W]` as columns `[N, C kernel, blocks]`."""
    x = input if input.ndim == 4 else input.expand_dims(0)
    n, c, h, w = x.shape
    places = _columns((h, w), kernel_size, dilation, padding, stride)
    if x.size == 0:
        columns = ops.zeros((n, c * places.shape[0], places.shape[1]), dtype=x.dtype)
    else:
        ph, pw = per_axis(padding, 2)
        x = ops.pad(x, (pw, pw, ph, ph)) if ph or pw else x
        taken = ops.gather(x.reshape((n * c, -1)), places.reshape(-1), 1)
        columns = taken.reshape(n, c * places.shape[0], places.shape[1])
    return columns if input.ndim == 4 else columns.squeeze(0)


def fold(
    input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """Sum of overlapping blocks `[N, C kernel, blocks]` in an image `[N, C, H, W]`."""
    x = input if input.ndim == 3 else input.expand_dims(0)
    size, (ph, pw) = per_axis(output_size, 2), per_axis(padding, 2)
    places = _columns(size, kernel_size, dilation, padding, stride)
    n, channels = x.shape[0], x.shape[1] // places.shape[0]
    h, w = size[0] + 2 * ph, size[1] + 2 * pw
    rows = x.reshape(n * channels, -1).swapaxes(0, 1)
    image = ops.zeros((h * w, n * channels), dtype=x.dtype)
    image = ops.tensor_scatter_add(image, places.reshape((-1, 1)), rows)
    image = image.swapaxes(0, 1).reshape(n, channels, h, w).narrow(2, ph, size[0]).narrow(3, pw, size[1])
    return image if input.ndim == 3 else image.squeeze(0)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """`[..., C r r, H, W]` to `[..., C, H r, W r]`."""
    r, lead = upscale_factor, input.shape[:-3]
    c, h, w = input.shape[-3:]
    x = input.reshape((-1, c // (r * r), r, r, h, w)).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape((*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """`[..., C, H r, W r]` to `[..., C r r, H, W]`."""
    r, lead = downscale_factor, input.shape[:-3]
    c, h, w = input.shape[-3:]
    x = input.reshape((-1, c, h // r, r, w // r, r)).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape((*lead, c * r * r, h // r, w // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """`[N, groups k, ...]` with the channels of the groups taken in turn."""
    n, c = input.shape[:2]
    return input.reshape((n, groups, c // groups, *input.shape[2:])).swapaxes(1, 2).reshape(input.shape)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """`y[k] = x1 W[k] x2 + b[k]`; weight `[out, in1, in2]`."""
    out, first, second = weight.shape
    left = matmul(input1.reshape(-1, first), weight.swapaxes(0, 1).reshape(first, out * second))
    result = (left.reshape(-1, out, second) * input2.reshape(-1, 1, second)).sum(-1)
    result = result if bias is None else result + bias
    return result.reshape((*input1.shape[:-1], out))
