"""Sums, means, spread and quantiles with torch's arguments."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .elementwise import nan_to_zero
from .nan_order import ascending_key


def _axes(input: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _count(input: Tensor, axes: tuple[int, ...]) -> int:
    number = 1
    for axis in axes:
        number = number * input.shape[axis]
    return number


def var(input: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    """Squared deviations from the mean, summed and divided by `max(0, n - correction)`.

    `dim` may be True or False, as in `var(x, False)`: whether the divisor is n - 1.
    """
    if isinstance(dim, bool):
        dim, correction = None, int(dim)
    if correction is None:
        correction = 1
    axes = _axes(input, dim)
    divisor = max(0.0, float(_count(input, axes)) - float(correction))
    if not axes:
        squared = (input - input) * input
        return squared / divisor
    centred = input - input.mean(axes, keep_dims=True)
    return (centred * centred).sum(axes, keepdims=keepdim) / divisor


def std(input: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Tensor:
    """Square root of `var`."""
    return ops.sqrt(var(input, dim, correction, keepdim))


def var_mean(input: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Variance and mean over the same axes."""
    return var(input, dim, correction, keepdim), _mean(input, dim, keepdim)


def std_mean(input: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over the same axes."""
    return std(input, dim, correction, keepdim), _mean(input, dim, keepdim)


def _mean(input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    axes = _axes(input, None if isinstance(dim, bool) else dim)
    return input.mean(axes, keep_dims=keepdim) if axes else input


def nansum(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Sum of the elements that are not NaN."""
    axes = _axes(input, dim)
    kept = nan_to_zero(input)
    kept = kept if dtype is None else kept.astype(dtype)
    return kept.sum(axes, keepdims=keepdim) if axes else kept


def nanmean(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Mean of the elements that are not NaN."""
    axes = _axes(input, dim)
    number = (~ops.isnan(input)).astype(input.dtype)
    number = number.sum(axes, keepdims=keepdim) if axes else number
    return nansum(input, dim, keepdim, dtype) / number


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Logarithm of the running sum of exponentials along `dim`, without overflow."""
    if input.ndim == 0:
        return input
    length = input.shape[dim]
    if length == 0:
        return input
    result = [input.narrow(dim, 0, 1)]
    for i in range(1, length):
        result.append(ops.logsumexp(ops.cat([result[-1], input.narrow(dim, i, 1)], dim), dim, True))
    return ops.cat(result, dim)


def cov(input: Tensor, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Covariance of variables in rows, observations in columns, which may have counts and importances."""
    rows = input.reshape(1, -1) if input.ndim < 2 else input
    weights = ops.ones((rows.shape[1],), dtype=rows.dtype)
    if fweights is not None:
        weights = weights * fweights
    importance = weights if aweights is None else weights * aweights
    total = importance.sum()
    centred = rows - (rows * importance).sum(1, keepdims=True) / total
    lost = correction if aweights is None else correction * (importance * aweights).sum() / total
    divisor = ops.relu(total - lost)
    return (ops.matmul(centred * importance, centred.swapaxes(0, 1)) / divisor).squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """Pearson's correlation of variables in rows, within [-1, 1]."""
    covariance = cov(input)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = ops.sqrt(ops.diagonal(covariance))
    return ops.clamp(covariance / deviation.reshape(-1, 1) / deviation, -1.0, 1.0)


def trapezoid(y: Tensor, x: Tensor | None = None, dx: float = 1, dim: int = -1) -> Tensor:
    """Integral by the trapezoidal rule."""
    return _trapezoids(y, x, dx, dim).sum(dim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, dx: float = 1, dim: int = -1) -> Tensor:
    """Running integral by the trapezoidal rule."""
    return ops.cumsum(_trapezoids(y, x, dx, dim), dim)


def _trapezoids(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    length = y.shape[dim]
    if length == 0:
        return y
    between = (y.narrow(dim, 1, length - 1) + y.narrow(dim, 0, length - 1)) / 2.0
    if x is None:
        return between * dx
    if x.ndim == 1:
        steps = x[1:] - x[:-1]
        shape = [1] * y.ndim
        shape[dim] = steps.shape[0]
        return between * steps.reshape(tuple(shape))
    number = x.shape[dim]
    return between * (x.narrow(dim, 1, number - 1) - x.narrow(dim, 0, number - 1))


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    interpolation: str = "linear",
    ignore_nan: bool = False,
) -> Tensor:
    """Quantiles `q` in [0, 1]; a vector of them becomes the first axis. NaN spreads, or is left out."""
    axis = 0 if dim is None else dim % max(input.ndim, 1)
    flat = input.reshape(-1) if dim is None or input.ndim == 0 else ops.movedim(input, axis, -1)
    order = ops.sort(ascending_key(flat), -1)[1].astype(ms.int64)
    ordered = ops.gather_elements(flat, -1, order)
    bad = ops.isnan(ordered)
    levels = q if isinstance(q, Tensor) else ms.tensor(q, input.dtype)
    number = (~bad).astype(input.dtype).sum(-1, keepdims=True) if ignore_nan else float(flat.shape[-1])
    ranks = levels.reshape(-1) * (number - 1.0)
    if ignore_nan:
        ranks = ops.maximum(ranks, ms.tensor(0.0, input.dtype))
    else:
        ranks = ops.broadcast_to(ranks, flat.shape[:-1] + ranks.shape)
    if interpolation == "nearest":
        ranks = ops.round(ranks)
    low = ops.floor(ranks)
    high = low if interpolation == "lower" else ops.ceil(ranks)
    if interpolation == "higher":
        low = high
    below = ops.gather_elements(ordered, -1, low.astype(ms.int64))
    above = ops.gather_elements(ordered, -1, high.astype(ms.int64))
    share = ms.tensor(0.5, input.dtype) if interpolation == "midpoint" else ranks - low
    result = below + (above - below) * share
    if not ignore_nan:
        result = ops.masked_fill(result, bad.any(-1, keep_dims=True), float("nan"))
    result = ops.movedim(result, -1, 0)
    if keepdim:
        result = result.reshape(result.shape[:1] + (1,) * input.ndim) if dim is None else result.expand_dims(axis + 1)
        result = result.reshape(result.shape[:1]) if input.ndim == 0 else result
    return result if isinstance(q, Tensor) and q.ndim == 1 else result.squeeze(0)
