"""Products and distances of vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .products import matmul


def _power(base: Tensor, exponent: float) -> Tensor:
    """`base ** exponent` for numbers from 0 on, with derivative 0 at 0, as torch's norms have it."""
    zero = base == 0
    safe = ops.select(zero, ops.ones_like(base), base)
    return ops.select(zero, ops.zeros_like(base), ops.pow(safe, exponent))


def vector_norm(input: Tensor, p: float, dim: Any, keepdim: bool = False) -> Tensor:
    """`(sum |x|^p)^(1/p)` along axes, with torch's derivative 0 where the norm is 0."""
    size = ops.abs(input)
    if p == 0:
        return (size != 0).astype(input.dtype).sum(dim, keepdims=keepdim)
    if p == float("inf"):
        return ops.amax(size, dim, keepdim)
    if p == float("-inf"):
        return ops.amin(size, dim, keepdim)
    if p == 1:
        return size.sum(dim, keepdims=keepdim)
    return _power(_power(size, float(p)).sum(dim, keepdims=keepdim), 1.0 / p)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """Distances of every row of `x1 [..., P, M]` to every row of `x2 [..., R, M]`."""
    difference = x1.expand_dims(-2) - x2.expand_dims(-3)
    if 0 in difference.shape:
        return ops.zeros(difference.shape[:-1], dtype=x1.dtype) + (x1.sum() + x2.sum()) * 0.0
    return vector_norm(difference, p, -1)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """Norm of the difference of two tensors, which are broadcast."""
    return vector_norm((input - other).reshape(-1), p, 0)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale down the slices along `dim` whose norm is above `maxnorm`."""
    axes = tuple([i for i in range(input.ndim) if i != dim % input.ndim])
    length = vector_norm(input, p, axes, True)
    # 1e-7 is torch's own guard in the divisor
    scale = ops.select(length > maxnorm, maxnorm / (length + 1e-7), ops.ones_like(length))
    return input * scale


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sum of products over the last axes of `a` and the first of `b`, or over two lists of axes."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        left, right = tuple(range(a.ndim - dims, a.ndim)), tuple(range(dims))
    else:
        left = _wrapped(dims[0], a.ndim)
        right = _wrapped(dims[1], b.ndim)
    for i, j in zip(left, right):  # noqa: B905 - ms.jit takes no strict=
        if a.shape[i] == 1 and b.shape[j] != 1:
            b = b.sum(j, keepdims=True)
        elif b.shape[j] == 1 and a.shape[i] != 1:
            a = a.sum(i, keepdims=True)
    rows = tuple([i for i in range(a.ndim) if i not in left])
    columns = tuple([i for i in range(b.ndim) if i not in right])
    inner, height, width = 1, 1, 1
    for i in left:
        inner = inner * a.shape[i]
    for i in rows:
        height = height * a.shape[i]
    for i in columns:
        width = width * b.shape[i]
    first = ops.transpose(a, rows + left) if a.ndim else a
    second = ops.transpose(b, right + columns) if b.ndim else b
    product = matmul(first.reshape(height, inner), second.reshape(inner, width))
    return product.reshape(tuple([a.shape[i] for i in rows]) + tuple([b.shape[i] for i in columns]))


def _wrapped(axes: Any, ndim: int) -> tuple[int, ...]:
    axes = (axes,) if isinstance(axes, int) else axes
    return tuple([axis % ndim for axis in axes])


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """Cross product along an axis of length 3, by default the first such axis."""
    if dim is None:
        dim = [*input.shape].index(3)
    a = [input.narrow(dim, i, 1) for i in range(3)]
    b = [other.narrow(dim, i, 1) for i in range(3)]
    parts = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return ops.cat(parts, dim)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (sum of the products of the matrix pairs)`."""
    product = matmul(batch1, batch2).sum(0) * alpha
    return product if beta == 0 else product + input * beta


def chain_matmul(*matrices: Tensor) -> Tensor:
    """Product of matrices from left to right."""
    result = matrices[0]
    for matrix in matrices[1:]:
        result = matmul(result, matrix)
    return result


def gradient(input: Tensor, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Derivatives along axes by second-order central differences; one-sided at the ends.

    `spacing` is one number, or per axis a number or a vector of coordinates.
    """
    spacing = 1 if spacing is None else spacing
    axes: Sequence[int] = tuple(range(input.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    several = isinstance(spacing, list | tuple)
    found = []
    for number, axis in enumerate(axes):
        step = spacing[number] if several else spacing
        found.append(_slope(ops.movedim(input, axis, -1), step, edge_order, axis))
    return tuple(found)


def _slope(f: Tensor, step: Any, edge_order: int, axis: int) -> Tensor:
    n = f.shape[-1]
    if isinstance(step, Tensor) and step.ndim == 1:
        gaps = (step[1:] - step[:-1]).astype(f.dtype)
    else:
        gaps = ops.ones((n - 1,), dtype=f.dtype) * step
    rises = (f[..., 1:] - f[..., :-1]) / gaps
    before, after = gaps[:-1], gaps[1:]
    middle = (rises[..., :-1] * after + rises[..., 1:] * before) / (before + after)
    first, last = rises[..., :1], rises[..., -1:]
    if edge_order == 2:
        first = first - (rises[..., 1:2] - first) * gaps[:1] / (gaps[:1] + gaps[1:2])
        last = last + (last - rises[..., -2:-1]) * gaps[-1:] / (gaps[-1:] + gaps[-2:-1])
    return ops.movedim(ops.cat([first, middle, last], -1), -1, axis)


def mvdot(input: Tensor, other: Tensor) -> Tensor:
    """Inner product of two vectors, the first one conjugated if it is complex."""
    first = ops.conj(input) if input.dtype in (ms.complex64, ms.complex128) else input
    return (first * other).sum()
