"""Copies elements between two tensors that are arranged from the same atoms, whatever each of them holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mappings.arrangement import Arrangement, Placement, Shape

Array = np.ndarray[Any, Any]


def fill(
    target: Array,
    held: Arrangement,
    source: Array,
    stored: Arrangement,
    convert: Callable[[Array], Array] | None = None,
) -> int:
    """Copies what both tensors have; returns how many elements that were.

    Only the elements that are copied are touched, so that of a mapped file nothing else is read.

    Args:
        target: contiguous; of the shape of `held`.
        held: what the target consists of.
        source: contiguous; of the shape of `stored`.
        stored: what the source consists of.
        convert: takes elements of the source to those of the target; None where numpy does.
    """
    count = 0
    for to, since in meetings(held, stored):
        elements = view(source, since)
        view(target, to)[...] = elements if convert is None else convert(elements)
        count += int(np.prod(to.extent))
    return count


def cut(whole: Array, stored: Arrangement, held: Arrangement) -> Array:
    """A new tensor with the elements of a larger one, and zeros where it has none."""
    piece = np.zeros(held.shape, whole.dtype)
    fill(piece, held, np.ascontiguousarray(whole), stored)
    return piece


def meetings(held: Arrangement, stored: Arrangement) -> Iterator[tuple[Placement, Placement]]:
    """Boxes of atoms that are in both, as they lie in each."""
    by_atom: dict[str, list[Placement]] = {}
    for placement in stored.placements():
        by_atom.setdefault(placement.atom, []).append(placement)
    for to in held.placements():
        for since in by_atom.get(to.atom, ()):
            start = tuple(max(a, b) for a, b in zip(to.start, since.start, strict=True))
            ends = (
                min(a + n, b + m) for a, n, b, m in zip(to.start, to.extent, since.start, since.extent, strict=True)
            )
            extent = tuple(end - first for end, first in zip(ends, start, strict=True))
            if all(size > 0 for size in extent):
                yield _part(to, start, extent), _part(since, start, extent)


def _part(placement: Placement, start: Shape, extent: Shape) -> Placement:
    skipped = zip(start, placement.start, placement.strides, strict=True)
    offset = placement.offset + sum((index - first) * stride for index, first, stride in skipped)
    return Placement(placement.atom, start, extent, offset, placement.strides)


def view(array: Array, box: Placement) -> Array:
    """The elements of a box in a contiguous array."""
    flat = array.reshape(-1)
    strides = [stride * array.itemsize for stride in box.strides]
    return np.lib.stride_tricks.as_strided(flat[box.offset :], box.extent, strides)
