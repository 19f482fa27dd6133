"""Products and running sums and products with torch's results for scalars, empty axes and zeros."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Product of all elements or along `dim`; of none it is 1, where mindspore.ops.prod gives what was in memory."""
    if 0 not in input.shape:
        return ops.prod(input, dtype=dtype) if dim is None else ops.prod(input, dim, keepdim, dtype=dtype)
    if dim is None:
        shape: tuple[int, ...] = ()
    elif keepdim:
        shape = tuple([1 if i == dim % input.ndim else input.shape[i] for i in range(input.ndim)])
    else:
        shape = tuple([input.shape[i] for i in range(input.ndim) if i != dim % input.ndim])
    return ops.ones(shape, dtype=input.dtype if dtype is None else dtype) + input.sum() * 0


def cumsum(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Running sum along `dim`."""
    if input.ndim == 0 or 0 in input.shape:
        return input if dtype is None else input.astype(dtype)
    return ops.cumsum(input, dim, dtype=dtype)


def cumprod(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Running product along `dim`, by doubling: no division, so zeros have the gradient that torch gives them."""
    if not (input if dtype is None else input.astype(dtype)).is_floating_point():
        return ops.cumprod(input, dim, dtype=dtype)
    result = input if dtype is None else input.astype(dtype)
    if input.ndim == 0 or 0 in input.shape:
        return result
    length, shift = input.shape[dim], 1
    while shift < length:
        ahead = result.narrow(dim, 0, length - shift)
        first = ops.ones_like(result.narrow(dim, 0, shift))
        result = result * ops.cat([first, ahead], dim)
        shift = shift * 2
    return result
