"""Repetition of a tensor along its axes: `mindspore.ops.tile` takes no lone number and no zero on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, ops


def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """`input` repeated; counts for leading new axes come first. Takes numbers, or one tuple or list of them."""
    counts = repeats
    if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)):
        counts = tuple(repeats[0])
    shape = (1,) * (len(counts) - input.ndim) + tuple(input.shape)
    result = tuple([count * size for count, size in zip(counts, shape)])  # noqa: B905 - ms.jit knows no strict
    if 0 in result:
        return ops.zeros(result, dtype=input.dtype)
    split: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()
    for count, size in zip(counts, shape):  # noqa: B905
        split, spread = (*split, 1, size), (*spread, count, size)
    return input.reshape(split).broadcast_to(spread).reshape(result)


def tile(input: Tensor, dims: Sequence[int]) -> Tensor:
    """`input` repeated; missing leading counts are 1."""
    counts = (1,) * (input.ndim - len(dims)) + tuple(dims)
    return repeat(input, *counts)
