"""Boxes of atoms in many tensors, as columns of numbers: plans of 100,000 tensors are made without a loop per pair."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mappings.arrangement import Arrangement, Piece, Shape, strides

Ints = npt.NDArray[np.int64]
PAIRS = 1 << 19  # pairs of boxes looked at in one step


@dataclass(frozen=True, slots=True)
class Boxes:
    """One row per box. Axes that an atom lacks have extent 1."""

    tensor: Ints
    """Number of the tensor in which the box lies."""
    atom: Ints
    """Number of the atom."""
    offset: Ints
    """Place of the first element in the tensor, in elements."""
    start: Ints
    """[box, axis]: first index in the atom."""
    extent: Ints
    steps: Ints
    """[box, axis]: elements of the tensor between neighbours in the atom."""

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def stop(self) -> Ints:
        """[box, axis]: index behind the last one."""
        return self.start + self.extent

    @property
    def volume(self) -> Ints:
        """Elements of each box."""
        return self.extent.prod(axis=1)

    def take(self, rows: Any) -> Boxes:
        """Some of the boxes, or all in another order."""
        return Boxes(*(getattr(self, name)[rows] for name in self.__slots__))

    def within(self, rows: Ints, low: Ints, high: Ints) -> Boxes:
        """Parts of some boxes, from index `low` to below `high` of the atom on each axis."""
        inside = low - self.start[rows]
        offset = self.offset[rows] + (inside * self.steps[rows]).sum(axis=1)
        return Boxes(self.tensor[rows], self.atom[rows], offset, low, high - low, self.steps[rows])


def joined(parts: Sequence[Boxes]) -> Boxes:
    """Tables one behind the other; all of one number of axes."""
    return Boxes(*(np.concatenate([getattr(part, name) for part in parts]) for name in Boxes.__slots__))


def boxes_of(arrangements: Iterable[Arrangement], atoms: dict[str, int], rank: int) -> Boxes:
    """The table of all boxes that hold elements.

    Args:
        arrangements: one per tensor.
        atoms: number of each atom; unknown ones are added.
        rank: axes of the table, at least those of any atom.
    """
    column = array("q")
    # Layers and experts repeat each other: a piece is worked out once, whatever its atom.
    known: dict[tuple[Shape, ...], Shape | None] = {}
    for tensor, arrangement in enumerate(arrangements):
        shape = arrangement.shape
        for piece in arrangement.pieces:
            key = (shape, piece.start, piece.extent, piece.at, piece.axes, piece.steps)
            if key in known:
                row = known[key]
            else:
                row = known[key] = _row(shape, piece, rank)
            if row is not None:
                column.extend((tensor, atoms.setdefault(piece.atom, len(atoms)), *row))
    table = np.frombuffer(column, np.int64).reshape(-1, 3 + 3 * rank)
    first, second = 3 + rank, 3 + 2 * rank
    return Boxes(table[:, 0], table[:, 1], table[:, 2], table[:, 3:first], table[:, first:second], table[:, second:])


def meetings(left: Boxes, right: Boxes, *, ordered: bool = False) -> tuple[Ints, Ints, Ints, Ints]:
    """Where boxes of one atom meet: rows of `left`, rows of `right`, first and last index (exclusive) on each axis.

    Args:
        left: one table.
        right: another one; or the same, with `ordered`.
        ordered: only pairs whose left row stands before the right row.
    """
    order = np.argsort(left.atom, kind="stable")
    by_atom = left.atom[order]
    first = np.searchsorted(by_atom, right.atom, side="left")
    count = np.searchsorted(by_atom, right.atom, side="right") - first
    ends = np.cumsum(count)
    rank = right.start.shape[1]
    stop_left, stop_right = left.stop, right.stop
    found: list[tuple[Ints, Ints, Ints, Ints]] = []
    row, total = 0, len(right)
    while row < total:
        before = int(ends[row - 1]) if row else 0
        until = max(row + 1, int(np.searchsorted(ends, before + PAIRS, side="right")))
        mine = np.repeat(np.arange(row, until), count[row:until])
        within = np.arange(len(mine)) - np.repeat(ends[row:until] - count[row:until] - before, count[row:until])
        other = order[np.repeat(first[row:until], count[row:until]) + within]
        if ordered:
            keep = other < mine
            mine, other = mine[keep], other[keep]
        low = np.maximum(left.start[other], right.start[mine])
        high = np.minimum(stop_left[other], stop_right[mine])
        keep = (low < high).all(axis=1)
        found.append((other[keep], mine[keep], low[keep], high[keep]))
        row = until
    if not found:
        none, flat = np.empty(0, np.int64), np.empty((0, rank), np.int64)
        return none, none, flat, flat
    a, b, low, high = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return a, b, low, high


def _row(shape: Shape, piece: Piece, rank: int) -> Shape | None:
    """Offset, start, extent and steps of a piece; None where it holds no element."""
    if 0 in piece.extent:
        return None
    unit = strides(shape)
    missing = rank - len(piece.axes)
    offset = sum(index * stride for index, stride in zip(piece.at, unit, strict=True))
    steps = tuple(step * unit[axis] for axis, step in zip(piece.axes, piece.steps, strict=True))
    zeros = (0,) * missing
    return (offset, *piece.start, *zeros, *piece.extent, *((1,) * missing), *steps, *zeros)
