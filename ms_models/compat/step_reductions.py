"""Sums along an axis, spelled in two axes while a graph is recorded: their kernels for CPU take a tenth of the time.

MindSpore 2.10 has fast kernels for the sums of a matrix along either axis; with more axes a general one runs, element
by element. What is broadcast (a weight, a factor for each row) has such a sum as its gradient, so products and sums
with it are spelled in two axes, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

LONGEST_ROW = 1 << 16
MOST_ROWS = 1 << 12
"""The fast kernels add one by one: with more numbers than these, the general one is more exact."""
_NAMES = {"dim": "axis", "keep_dims": "keep", "keepdim": "keep", "keepdims": "keep"}


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape((-1, tensor.shape[-1]))


def _is_cut(tensor: Any, axes: int = 3) -> bool:
    """Whether it is worth being seen as rows."""
    return (
        isinstance(tensor, Tensor)
        and tensor.ndim >= axes
        and tensor.dtype == ms.float32
        and 0 not in tensor.shape
        and 1 < tensor.shape[-1] <= LONGEST_ROW
    )


def reduction_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """`sum` or `mean`, as a function or a method."""

    def reduction(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs and _is_cut(input, 2):
            return original(original(_rows(input), 1))
        keep = _kept_axis(input, args, kwargs) if _is_cut(input) else None
        if keep is None:
            return original(input, *args, **kwargs)
        return original(_rows(input), 1).reshape((*input.shape[:-1], 1) if keep else input.shape[:-1])

    return reduction


def _kept_axis(input: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """For the last axis whether it is kept; None for other arguments."""
    given = dict(zip(("axis", "keep"), args, strict=False))
    for name, value in kwargs.items():
        given[
            "axis" if name in ("axis", "dim") else "keep" if name in ("keep_dims", "keepdim", "keepdims") else name
        ] = value
    if len(given) != len(args) + len(kwargs) or not given.keys() <= {"axis", "keep"}:
        return None
    axis, keep = given.get("axis"), given.get("keep", False)
    axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
    return keep if type(axis) is int and axis in (-1, input.ndim - 1) and type(keep) is bool else None


def softmax_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """`ops.softmax`, whose gradient sums along the axis."""

    def softmax(input: Tensor, axis: int = -1, *, dtype: Any = None) -> Tensor:
        if dtype is not None or not _is_cut(input) or axis not in (-1, input.ndim - 1):
            return original(input, axis, dtype=dtype)
        return original(_rows(input), -1).reshape(input.shape)

    return softmax


def layer_norm_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """`ops.LayerNorm`, whose gradient takes as long as ten of these operations."""

    def layer_norm(begin_norm_axis: int = 1, begin_params_axis: int = 1, epsilon: float = 1e-7) -> Callable[..., Any]:
        own = original(begin_norm_axis, begin_params_axis, epsilon)

        def normalized(input: Tensor, scale: Tensor, shift: Tensor) -> Any:
            axes = (begin_norm_axis, begin_params_axis)
            if not _is_cut(input, 2) or any(axis not in (-1, input.ndim - 1) for axis in axes):
                return own(input, scale, shift)
            rows = _rows(input)
            if len(rows) > MOST_ROWS:
                return own(input, scale, shift)
            mean = rows.mean(1).reshape((-1, 1))
            centred = rows - mean
            variance = (centred * centred).mean(1).reshape((-1, 1))
            result = centred * ops.rsqrt(variance + epsilon) * scale + shift
            counts = (*input.shape[:-1], 1)
            return result.reshape(input.shape), mean.reshape(counts), variance.reshape(counts)

        return normalized

    return layer_norm


def broadcast_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of two operands, of which one may be a row, or one number for each row, of the other."""

    def operator(left: Any, right: Any) -> Any:
        if _is_cut(left) and _fits(left, right):
            return original(_rows(left), _as_part(right)).reshape(left.shape)
        if _is_cut(right) and _fits(right, left):
            return original(_as_part(left), _rows(right)).reshape(right.shape)
        return original(left, right)

    return operator


def _fits(whole: Tensor, part: Any) -> bool:
    if not isinstance(part, Tensor) or part.dtype != whole.dtype:
        return False
    if part.shape == whole.shape[-1:]:
        return whole.size // whole.shape[-1] <= MOST_ROWS
    return part.shape == (*whole.shape[:-1], 1)


def _as_part(part: Tensor) -> Tensor:
    return part if part.ndim == 1 else _rows(part)
