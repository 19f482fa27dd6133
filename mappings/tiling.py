"""Proofs on arrangements: that the pieces of a tensor do not overlap, and that boxes cover an atom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from mappings.arrangement import Arrangement, Piece, Shape


def overlap(arrangement: Arrangement) -> tuple[Piece, Piece] | None:
    """Two pieces that claim one element, or None: then the pieces and the padding tile the tensor.

    Pieces are compared axis by axis, where each is an arithmetic progression. A piece with two atom axes along one axis
    of the tensor is first cut until it is one.
    """
    simple = [part for piece in arrangement.pieces for part in _progressions(piece) if 0 not in part.extent]
    spans = [_spans(piece, len(arrangement.shape)) for piece in simple]
    for piece, span in zip(simple, spans, strict=True):
        if any(start < 0 or last >= size for (start, _, last), size in zip(span, arrangement.shape, strict=True)):
            return piece, piece
    return _first_overlap(simple, spans)


def uncovered(shape: Sequence[int], boxes: Iterable[tuple[Shape, Shape]]) -> Shape | None:
    """First index of an atom that no box (start, extent) covers, or None. Boxes may overlap."""
    cells = [(start, extent) for start, extent in boxes if 0 not in extent]
    if 0 in shape:
        return None
    if any(not any(start) and extent == tuple(shape) for start, extent in cells):
        return None
    edges = [
        sorted({0, *(s[axis] for s, _ in cells), *(s[axis] + e[axis] for s, e in cells if s[axis] + e[axis] < size)})
        for axis, size in enumerate(shape)
    ]
    return _first_hole(edges, cells, ())


def _first_hole(edges: list[list[int]], cells: list[tuple[Shape, Shape]], index: Shape) -> Shape | None:
    axis = len(index)
    if axis == len(edges):
        return None if cells else index
    for edge in edges[axis]:
        inside = [(s, e) for s, e in cells if s[axis] <= edge < s[axis] + e[axis]]
        if not inside:
            return (*index, edge, *(0 for _ in edges[axis + 1 :]))
        if (hole := _first_hole(edges, inside, (*index, edge))) is not None:
            return hole
    return None


def _along(piece: Piece, axis: int) -> list[tuple[int, int, int]]:
    """(step, count, atom axis) of what runs along an axis of the tensor, the smallest step first."""
    found = zip(piece.steps, piece.extent, range(len(piece.axes)), piece.axes, strict=True)
    return sorted((step, count, a) for step, count, a, place in found if place == axis and count > 1)


def _progressions(piece: Piece) -> Iterator[Piece]:
    """The piece, cut until its indices along each axis of the tensor are one arithmetic progression."""
    for axis in set(piece.axes):
        along = _along(piece, axis)
        for (step, count, _), (outer, times, a) in pairwise(along):
            if step * count != outer:
                for index in range(times):
                    yield from _progressions(piece.taken(a, index, 1))
                return
    yield piece


def _spans(piece: Piece, rank: int) -> list[tuple[int, int, int]]:
    """(first, step, last) index along each axis of the tensor; step 0 is a single index."""
    spans = []
    for axis in range(rank):
        along = _along(piece, axis)
        reach = sum(step * (count - 1) for step, count, _ in along)
        spans.append((piece.at[axis], along[0][0] if along else 0, piece.at[axis] + reach))
    return spans


def _first_overlap(pieces: list[Piece], spans: list[list[tuple[int, int, int]]]) -> tuple[Piece, Piece] | None:
    """Two pieces that meet on every axis. On one axis, progressions are apart if their ranges or their residues are."""
    if len(pieces) < 2 or not spans[0]:
        return (pieces[0], pieces[1]) if len(pieces) > 1 else None
    order = sorted(range(len(pieces)), key=lambda i: spans[i][0][0])
    table = np.array([spans[i] for i in order], np.int64)  # [piece, axis, (first, step, last)]
    first, step, last = table[:, :, 0], table[:, :, 1], table[:, :, 2]
    for i in range(len(order) - 1):
        later = slice(i + 1, int(np.searchsorted(first[:, 0], last[i, 0], side="right")))
        meet = (first[later] <= last[i]) & (last[later] >= first[i])
        meet &= (first[later] - first[i]) % np.maximum(np.gcd(step[later], step[i]), 1) == 0
        for hit in np.flatnonzero(meet.all(axis=1)):
            other = order[i + 1 + int(hit)]
            if all(_common(a, b) for a, b in zip(spans[order[i]], spans[other], strict=True)):
                return pieces[order[i]], pieces[other]
    return None


def _common(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Whether two progressions (first, step, last) whose residues agree share an index."""
    (first, step, last), (other, skip, end) = a, b
    if not step or not skip:
        (index, _, _), (start, stride, stop) = (a, b) if not step else (b, a)
        return start <= index <= stop and (index - start) % max(stride, 1) == 0
    both = math.gcd(step, skip)
    shared = first + (other - first) // both * pow(step // both, -1, skip // both) * step  # Chinese remainder
    period = step * skip // both
    least = max(first, other)
    return least + (shared - least) % period <= min(last, end)
