"""Other spellings of operations whose kernels for CPU are slow, while a graph is recorded; the values are the same.

MindSpore 2.10 on CPU: a linear layer transposes its weight, and its gradient both operands. A slice with steps along
the last axis takes ten times as long as taking that axis apart, and so does a slice that only adds axes. The gradient
of repeated elements is a sum along a short axis, which takes ten times as long as adding the parts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .step_reductions import broadcast_by, layer_norm_by, reduction_by, softmax_by

PIECES = 8
"""Longest axis that is taken apart for one of its positions."""

_product = ops.MatMul(transpose_b=True)


@contextlib.contextmanager
def cpu_spelling() -> Iterator[None]:
    """Inside, operations have the spelling that is fast in graphs on CPU; elsewhere nothing changes."""
    if ms.get_context("device_target") != "CPU":
        yield
        return
    places = [
        (ops, "dense", _dense_by),
        (ops, "repeat_interleave", _repeat_interleave_by),
        (Tensor, "repeat_interleave", _repeat_interleave_by),
        (Tensor, "expand", _expand_by),
        (Tensor, "__getitem__", _get_item_by),
        (Tensor, "__pow__", _power_by),
        (Tensor, "__truediv__", lambda original: broadcast_by(_division_by(original))),
        *((Tensor, f"__{name}__", broadcast_by) for name in ("add", "sub", "mul")),
        *((owner, name, reduction_by) for owner in (ops, Tensor) for name in ("sum", "mean")),
        *((owner, "pow", _power_by) for owner in (ops, Tensor)),
        (ops, "softmax", softmax_by),
        (ops, "LayerNorm", layer_norm_by),
        (ops, "gelu", _gelu_by),
    ]
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in places]
    for owner, name, made in places:
        setattr(owner, name, made(getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, original in originals:
            if original is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _dense_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def dense(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if input.ndim < 2 or weight.ndim != 2:
            return original(input, weight, bias)
        rows = input if input.ndim == 2 else input.reshape((-1, input.shape[-1]))
        product = _product(rows, weight)
        if bias is not None:
            product = product + bias
        return product if input.ndim == 2 else product.reshape((*input.shape[:-1], weight.shape[0]))

    return dense


def _repeat_interleave_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def repeat_interleave(input: Tensor, repeats: Any, *args: Any, **kwargs: Any) -> Tensor:
        dim = args[0] if len(args) == 1 else kwargs.get("dim", kwargs.get("axis"))
        if type(repeats) is not int or type(dim) is not int or len(args) + len(kwargs) != 1:
            return original(input, repeats, *args, **kwargs)
        if not 1 < repeats <= PIECES or not -input.ndim <= dim < input.ndim or 0 in input.shape:
            return original(input, repeats, *args, **kwargs)
        dim %= input.ndim
        shape = list(input.shape)
        once = input.reshape((*shape[: dim + 1], 1, *shape[dim + 1 :]))
        shape[dim] *= repeats
        return ops.concat([once] * repeats, dim + 1).reshape(tuple(shape))

    return repeat_interleave


def _expand_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def expand(input: Tensor, *sizes: Any) -> Tensor:
        shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        grown = [n for n, (old, new) in enumerate(zip(input.shape, shape, strict=False)) if new not in (old, -1)]
        if len(shape) != input.ndim or len(grown) != 1 or not all(type(size) is int for size in shape):
            return original(input, *sizes)
        (axis,) = grown
        if input.shape[axis] != 1 or not 1 < shape[axis] <= PIECES or 0 in input.shape:
            return original(input, *sizes)
        return ops.concat([input] * shape[axis], axis)

    return expand


def _power_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def power(input: Any, exponent: Any) -> Any:
        is_square = isinstance(input, Tensor) and input.is_floating_point() and type(exponent) in (int, float)
        return input * input if is_square and exponent == 2 else original(input, exponent)

    return power


def _division_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def division(input: Any, divisor: Any) -> Any:
        if isinstance(input, Tensor) and input.is_floating_point() and type(divisor) in (int, float) and divisor:
            fraction, exponent = math.frexp(divisor)
            if abs(fraction) == 0.5 and abs(exponent) < 14:  # its reciprocal is exact in every type
                return input * (1 / divisor)
        return original(input, divisor)

    return division


def _gelu_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def gelu(input: Tensor, approximate: str = "none") -> Tensor:
        if approximate != "none":
            return original(input, approximate)
        return input * ((ops.erf(input * math.sqrt(0.5)) + 1.0) * 0.5)

    return gelu


def _get_item_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_item(tensor: Tensor, key: Any) -> Any:
        found = _added_axes(tensor, key)
        if found is None:
            found = _of_last_axis(tensor, key)
        return original(tensor, key) if found is None else found

    return get_item


def _parts(tensor: Tensor, key: Any) -> list[Any] | None:
    """One entry for each axis of the tensor, and None for each added one; None for keys with other parts."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if not all(p is None or p is Ellipsis or isinstance(p, slice) or type(p) is int for p in parts):
        return None
    given = sum(p is not None and p is not Ellipsis for p in parts)
    if given > tensor.ndim or parts.count(Ellipsis) > 1:
        return None
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    place = parts.index(Ellipsis)
    parts[place : place + 1] = [slice(None)] * (tensor.ndim - given)
    return parts


def _added_axes(tensor: Tensor, key: Any) -> Tensor | None:
    parts = _parts(tensor, key)
    if parts is None or None not in parts or any(p is not None and p != slice(None) for p in parts):
        return None
    sizes = iter(tensor.shape)
    return tensor.reshape(tuple(1 if p is None else next(sizes) for p in parts))


def _of_last_axis(tensor: Tensor, key: Any) -> Tensor | None:
    """`x[..., 1]` and `x[..., 1::2]`."""
    parts = _parts(tensor, key)
    if not parts or tensor.ndim < 2 or any(p != slice(None) for p in parts[:-1]) or 0 in tensor.shape:
        return None
    size, last = tensor.shape[-1], parts[-1]
    if type(last) is int:
        return ops.unstack(tensor, -1)[last] if size <= PIECES and -size <= last < size else None
    if last is None or last.stop is not None or type(last.step) is not int or not 1 < last.step <= PIECES:
        return None
    start = 0 if last.start is None else last.start
    if type(start) is not int or not 0 <= start < last.step or size % last.step:
        return None
    pieces = tensor.reshape((*tensor.shape[:-1], size // last.step, last.step))
    return ops.unstack(pieces, -1)[start]
