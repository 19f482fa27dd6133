"""Padding with torch's modes, for any number of axes; negative widths cut off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the last axes; `pad` is `(left, right)` of the last axis, then of the one before, and so on.

    Modes: `constant` (filled with `value`), `reflect` (mirrored without the edge), `replicate` (edge), `circular`.
    """
    widths = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]
    for i in range(len(widths)):
        left, right = widths[i]
        if left == 0 and right == 0:
            continue
        axis = input.ndim - 1 - i
        if mode == "constant":
            input = _constant(input, axis, left, right, 0 if value is None else value)
        elif input.size == 0:  # nothing to copy and no kernel for it
            input = _filled(input, axis, input.shape[axis] + left + right, 0)
        else:
            input = ops.gather(input, _positions(input.shape[axis], left, right, mode), axis)
    return input


def _constant(input: Tensor, axis: int, left: int, right: int, value: float) -> Tensor:
    start, length = max(-left, 0), input.shape[axis] - max(-left, 0) - max(-right, 0)
    if length < 0:
        raise ValueError(f"pad cuts more than the {input.shape[axis]} elements of axis {axis}")
    if length == 0:
        return _filled(input, axis, max(left, 0) + max(right, 0), value)
    if length != input.shape[axis]:
        input = input.narrow(axis, start, length)
    parts = [input]
    if left > 0:
        parts = [_filled(input, axis, left, value), *parts]
    if right > 0:
        parts = [*parts, _filled(input, axis, right, value)]
    return parts[0] if len(parts) == 1 else ops.cat(parts, axis)


def _filled(like: Tensor, axis: int, length: int, value: float) -> Tensor:
    shape = (*like.shape[:axis], length, *like.shape[axis + 1 :])
    return ops.full(shape, value, dtype=like.dtype)


@constexpr
def _positions(length: int, left: int, right: int, mode: str) -> Tensor:
    """Which element stands at each place of the padded axis.

    Raises:
        ValueError: unknown mode.
    """
    places = np.arange(-left, length + right)
    if mode == "replicate":
        return Tensor(np.clip(places, 0, length - 1))
    if mode == "circular":  # what is cut off does not come back on the other side
        first, kept = max(-left, 0), length - max(-left, 0) - max(-right, 0)
        return Tensor(first + (places - first) % kept)
    if mode == "reflect":
        places = np.abs(places)
        return Tensor(np.where(places >= length, 2 * (length - 1) - places, places))
    raise ValueError(f"unknown padding mode {mode!r}; torch has constant, reflect, replicate and circular")
