"""`torch.masked`: reductions and normalisations over the elements that a mask keeps."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops

from .activations import log_softmax as _log_softmax
from .activations import softmax as _softmax
from .cumulative import cumprod as _cumprod
from .cumulative import prod as _prod
from .ordering import amax as _amax
from .ordering import amin as _amin
from .ordering import argmax as _argmax
from .ordering import argmin as _argmin
from .picking import nanmedian

_INF = float("inf")


def _filled(input: Tensor, mask: Tensor | None, value: float, dtype: Any = None) -> Tensor:
    """`input` with one value where the mask does not hold."""
    input = input if dtype is None else input.astype(dtype)
    if mask is None:
        return input
    return ops.where(ops.broadcast_to(mask, input.shape), input, ops.full_like(input, value))


def _axes(input: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None or dim == ():
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _total(input: Tensor, dim: Any, keepdim: bool) -> Tensor:
    axes = _axes(input, dim)
    return input if input.ndim == 0 or not axes else input.sum(axes, keepdims=keepdim)


def _number(input: Tensor, dim: Any, keepdim: bool, mask: Tensor | None) -> Tensor:
    return _total(_filled(ops.ones_like(input), mask, 0.0), dim, keepdim)


def sum(input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Sum of the kept elements."""
    return _total(_filled(input, mask, 0.0, dtype), dim, keepdim)


def mean(
    input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Mean of the kept elements, NaN where there are none."""
    return sum(input, dim, keepdim, dtype, mask) / _number(input, dim, keepdim, mask)


def prod(
    input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Product of the kept elements."""
    result = _filled(input, mask, 1.0, dtype)
    if input.ndim == 0:
        return result
    ndim, axes = input.ndim, _axes(input, dim)
    for axis in range(ndim - 1, -1, -1):
        if axis in axes or axis - ndim in axes:
            result = _prod(result, axis, keepdim)
    return result


def amax(
    input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Largest kept element."""
    filled = _filled(input, mask, -_INF, dtype)
    return _amax(filled, dim, keepdim)


def amin(
    input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Smallest kept element."""
    filled = _filled(input, mask, _INF, dtype)
    return _amin(filled, dim, keepdim)


def argmax(
    input: Tensor, dim: int | None = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Position of the largest kept element."""
    return _position(_filled(input, mask, -_INF, dtype), dim, keepdim, _argmax)


def argmin(
    input: Tensor, dim: int | None = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Position of the smallest kept element."""
    return _position(_filled(input, mask, _INF, dtype), dim, keepdim, _argmin)


def _position(filled: Tensor, dim: int | None, keepdim: bool, find: Any) -> Tensor:
    """torch gives these positions in the data type of the input."""
    return find(filled, dim, keepdim).astype(filled.dtype)


def median(
    input: Tensor, dim: int = -1, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The lower middle one of the kept elements, NaN where there are none."""
    return nanmedian(_filled(input, mask, float("nan"), dtype), dim, keepdim)[0]


def logsumexp(
    input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """Logarithm of the sum of exponentials of the kept elements."""
    filled = _filled(input, mask, -_INF, dtype)
    if input.ndim == 0:
        return filled
    axes = _axes(input, dim)
    top = ops.stop_gradient(ops.amax(filled, axes, True))
    top = ops.where(ops.abs(top) == _INF, ops.zeros_like(top), top)
    result = ops.log(ops.exp(filled - top).sum(axes, keepdims=True)) + top
    return result if keepdim else result.squeeze(axes)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Squared deviations of the kept elements from their mean, divided by their number less the correction."""
    less = correction if correction is not None else 1 if unbiased is None else int(unbiased)
    input = input if dtype is None else input.astype(dtype)
    number = _number(input, dim, True, mask)
    centred = input - sum(input, dim, True, None, mask) / number
    squares = _total(_filled(centred * centred, mask, 0.0), dim, keepdim)
    divisor = _number(input, dim, keepdim, mask) - float(less)
    return squares / ops.maximum(divisor, ops.zeros_like(divisor))


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Square root of `var`."""
    return ops.sqrt(var(input, dim, unbiased, correction, keepdim, dtype, mask))


def norm(
    input: Tensor,
    ord: float | None = 2.0,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Vector norm of the kept elements."""
    order = 2.0 if ord is None else float(ord)
    size = ops.abs(_filled(input, mask, _INF if order == -_INF else 0.0, dtype))
    if order in (_INF, -_INF):
        if input.ndim == 0:
            return size
        return (ops.amax if order > 0 else ops.amin)(size, _axes(input, dim), keepdim)
    if order == 0.0:
        return _total((size != 0).astype(size.dtype), dim, keepdim)
    if order == 1.0:
        return _total(size, dim, keepdim)
    return _power(_total(_power(size, order), dim, keepdim), 1.0 / order)


def _power(base: Tensor, exponent: float) -> Tensor:
    """A power of numbers from 0 on whose derivative at 0 is 0."""
    zero = base == 0
    powered = ops.pow(ops.where(zero, ops.ones_like(base), base), exponent)
    return ops.where(zero, ops.zeros_like(base), powered)


def softmax(input: Tensor, dim: int, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Softmax over the kept elements; the others are 0. Where none is kept it is NaN."""
    return _normalized(_filled(input, mask, -_INF, dtype), dim)


def log_softmax(input: Tensor, dim: int, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Logarithm of `softmax`."""
    return _log_softmax(_filled(input, mask, -_INF, dtype), dim)


def softmin(input: Tensor, dim: int, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """`softmax` of the negated input."""
    return _normalized(-_filled(input, mask, _INF, dtype), dim)


def _normalized(filled: Tensor, dim: int) -> Tensor:
    """Softmax; MindSpore's own gives what was in memory for a row of minus infinities."""
    if filled.ndim == 0 or 0 in filled.shape:
        return _softmax(filled, dim)
    lost = ops.amax(ops.stop_gradient(filled), dim, True) == -_INF
    lost = ops.broadcast_to(lost, filled.shape)
    return ops.where(lost, ops.full_like(filled, float("nan")), _softmax(filled, dim))


def normalize(
    input: Tensor, ord: float, dim: int, eps: float = 1e-12, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The kept elements divided by their norm, at least `eps`; the others are 0."""
    length = norm(input, ord, dim, True, dtype, mask)
    return _filled(input, mask, 0.0, dtype) / ops.maximum(length, ops.full_like(length, eps))


def cumsum(input: Tensor, dim: int, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Running sum of the kept elements."""
    filled = _filled(input, mask, 0.0, dtype)
    return filled if input.ndim == 0 or 0 in input.shape else ops.cumsum(filled, dim)


def cumprod(input: Tensor, dim: int, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Running product of the kept elements."""
    filled = _filled(input, mask, 1.0, dtype)
    return _cumprod(filled, dim)


def logaddexp(
    input: Tensor,
    other: Tensor,
    dtype: Any = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """`log(exp(input) + exp(other))` where a masked element counts as minus infinity."""
    first, second = _filled(input, input_mask, -_INF, dtype), _filled(other, other_mask, -_INF, dtype)
    gap = ops.where(first > second, first - second, second - first)  # no `abs`: see elementwise.logaddexp
    summed = ops.where(first > second, first, second) + ops.log1p(ops.exp(-gap))
    return ops.where(ops.isnan(gap), first + second, summed)
