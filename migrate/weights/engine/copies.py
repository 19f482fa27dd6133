"""Strided copies between two tensors, as columns, in their simplest form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.weights.engine.boxes import Boxes, Ints
from migrate.weights.engine.copy_item import Item, Side


@dataclass(frozen=True, slots=True)
class Copies:
    """One row per copy. Axis 0 is the innermost of the target; axes that are not needed have extent 1."""

    source: Ints
    """Number of the source tensor."""
    target: Ints
    read: Ints
    """First element in the source."""
    write: Ints
    extent: Ints
    """[copy, axis]"""
    read_steps: Ints
    """[copy, axis]: elements of the source between neighbours along the axis."""
    write_steps: Ints

    def __len__(self) -> int:
        return len(self.source)

    @property
    def volume(self) -> Ints:
        """Elements of each copy."""
        return self.extent.prod(axis=1)

    @property
    def read_stop(self) -> Ints:
        """Behind the last element in the source."""
        return self.read + ((self.extent - 1) * self.read_steps).sum(axis=1) + 1

    @property
    def write_stop(self) -> Ints:
        """Behind the last element in the target."""
        return self.write + ((self.extent - 1) * self.write_steps).sum(axis=1) + 1

    @property
    def runs(self) -> Ints:
        """Elements that lie side by side both in the source and in the target."""
        side_by_side = (self.read_steps[:, 0] == 1) & (self.write_steps[:, 0] == 1)
        return np.where(side_by_side, self.extent[:, 0], 1)

    def take(self, rows: Any) -> Copies:
        """Some of the copies, or all in another order."""
        return Copies(*(getattr(self, name)[rows] for name in self.__slots__))


def copies_between(sources: Boxes, targets: Boxes) -> Copies:
    """Copies of whole boxes; row i of both tables is the same box of the same atom."""
    order = np.argsort(np.where(targets.extent > 1, targets.steps, np.iinfo(np.int64).max), axis=1, kind="stable")
    extent, read, write = (
        np.take_along_axis(table, order, axis=1) for table in (targets.extent, sources.steps, targets.steps)
    )
    return Copies(sources.tensor, targets.tensor, sources.offset, targets.offset, *_merged(extent, read, write))


def _merged(extent: Ints, read: Ints, write: Ints) -> tuple[Ints, Ints, Ints]:
    """Neighbouring axes that are one axis in both tensors become one."""
    count, rank = extent.shape
    out_extent = np.ones((count, max(rank, 1)), np.int64)
    out_read, out_write = np.ones_like(out_extent), np.ones_like(out_extent)
    top = np.full(count, -1)
    rows = np.arange(count)
    for axis in range(rank):
        length, r, w = extent[:, axis], read[:, axis], write[:, axis]
        size = out_extent[rows, top]  # the last column where nothing was put yet; not used then
        runs_on = (r == out_read[rows, top] * size) & (w == out_write[rows, top] * size)
        merge = (length > 1) & (top >= 0) & runs_on
        out_extent[rows[merge], top[merge]] *= length[merge]
        put = (length > 1) & ~merge
        top[put] += 1
        for out, value in ((out_extent, length), (out_read, r), (out_write, w)):
            out[rows[put], top[put]] = value[put]
    used = int(top.max(initial=0)) + 1
    return out_extent[:, :used], out_read[:, :used], out_write[:, :used]


def split_long(copies: Copies, limit: Ints) -> Copies:
    """Single runs of more than `limit[i]` elements, cut into several copies so that threads can share them."""
    long = (copies.extent[:, 1:] == 1).all(axis=1) & (copies.runs > limit) & (copies.runs == copies.extent[:, 0])
    if not long.any():
        return copies
    rows = np.flatnonzero(long)
    count = -(-copies.extent[rows, 0] // limit[rows])
    repeated = np.repeat(rows, count)
    number = np.arange(len(repeated)) - np.repeat(np.cumsum(count) - count, count)
    parts = copies.take(repeated)
    first = number * limit[repeated]
    extent = parts.extent.copy()
    extent[:, 0] = np.minimum(limit[repeated], extent[:, 0] - first)
    pieces = Copies(
        parts.source, parts.target, parts.read + first, parts.write + first, extent, parts.read_steps, parts.write_steps
    )
    return concatenated([copies.take(~long), pieces])


def concatenated(parts: list[Copies]) -> Copies:
    """Tables one behind the other; all of one number of axes."""
    return Copies(*(np.concatenate([getattr(part, name) for part in parts]) for name in Copies.__slots__))


def items(copies: Copies, first: int, last: int) -> list[Item]:
    """Some copies one by one: widest axis of the target first, without axes of one index."""
    columns = (getattr(copies, name)[first:last].tolist() for name in copies.__slots__)
    result = []
    for source, target, read, write, extent, read_steps, write_steps in zip(*columns, strict=True):
        axes = [axis for axis in range(len(extent) - 1, -1, -1) if extent[axis] > 1]
        counts = tuple([extent[axis] for axis in axes])
        result.append(
            Item(
                Side(source, read, counts, tuple([read_steps[axis] for axis in axes])),
                Side(target, write, counts, tuple([write_steps[axis] for axis in axes])),
            )
        )
    return result
