"""Numbers in torch's order, in which NaN is the largest; MindSpore's kernels put NaN anywhere."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops


def _top(dtype: ms.Type) -> float:
    """A number no finite one of this type is above."""
    if dtype == ms.float16:
        return 65504.0
    if dtype == ms.bfloat16:
        return 3.3895314e38
    return 3.4028235e38 if dtype == ms.float32 else 1.7976931348623157e308


def ascending_key(input: Tensor) -> Tensor:
    """Numbers, without gradient, whose order is torch's order of `input`: NaN above everything, infinity below it."""
    fixed = ops.stop_gradient(input)
    if not input.is_floating_point():
        return fixed
    top = ops.full_like(fixed, _top(input.dtype))
    finite = ops.where(fixed > top, top, fixed)
    return ops.where(ops.isnan(fixed), ops.full_like(fixed, float("inf")), finite)


def descending_key(input: Tensor) -> Tensor:
    """As `ascending_key`, but NaN is below everything: for searches of the smallest element, which NaN wins too."""
    if not input.is_floating_point():
        return ops.stop_gradient(input)
    return -ascending_key(-input)


def nan_wins(input: Tensor, result: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """A reduction of `input` with NaN where one of the reduced elements is NaN."""
    if not input.is_floating_point():
        return result
    bad = ops.isnan(input).any(axes, keepdim)
    return ops.where(bad, ops.full_like(result, float("nan")), result)
