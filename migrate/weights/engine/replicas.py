"""Which source each element is read from, where several hold it; the others are compared with that one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from migrate.weights.engine.boxes import Boxes, Ints, joined, meetings

Box = tuple[tuple[int, ...], tuple[int, ...]]  # start, stop


@dataclass(frozen=True)
class Choice:
    """Sources without repetition, and what has to be equal."""

    boxes: Boxes
    """No element of an atom is in two of these."""
    kept: Boxes
    """[i] must hold the same elements as `copies[i]`."""
    copies: Boxes


def choose(sources: Boxes) -> Choice:
    """Takes each element of each atom from the first source that holds it."""
    first, again = _equal_boxes(sources)
    unique = sources.take(np.unique(first))
    kept, copies = [sources.take(first[again])], [sources.take(again)]
    left, right, low, high = meetings(unique, unique, ordered=True)
    if len(left):
        kept.append(unique.within(left, low, high))
        copies.append(unique.within(right, low, high))
        unique = _without_overlaps(unique, right)
    return Choice(unique, joined(kept), joined(copies))


def _equal_boxes(boxes: Boxes) -> tuple[Ints, Ints]:
    """For each box the first row that is the same box of the same atom, and the rows that repeat one."""
    rows = np.arange(len(boxes))
    if not len(boxes):
        return rows, rows
    keys = np.column_stack([boxes.atom, boxes.start, boxes.extent])
    order = np.lexsort((rows, *keys.T[::-1]))
    new = np.ones(len(order), bool)
    new[1:] = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    first = np.empty_like(rows)
    first[order] = order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]
    return first, np.flatnonzero(first != rows)


def _without_overlaps(boxes: Boxes, later: Ints) -> Boxes:
    """Boxes that overlap earlier ones, cut down to what those lack."""
    cut = np.unique(later)
    whole = np.setdiff1d(np.arange(len(boxes)), cut)
    taken: dict[int, list[Box]] = {}
    affected = set(boxes.atom[cut].tolist())
    for row in whole[np.isin(boxes.atom[whole], list(affected))].tolist():
        taken.setdefault(int(boxes.atom[row]), []).append(_box(boxes, row))
    rows, low, high = [], [], []
    for row in cut.tolist():
        parts = [_box(boxes, row)]
        for other in taken.get(int(boxes.atom[row]), []):
            parts = [rest for part in parts for rest in _minus(part, other)]
        taken.setdefault(int(boxes.atom[row]), []).extend(parts)
        for start, stop in parts:
            rows.append(row)
            low.append(start)
            high.append(stop)
    if not rows:
        return boxes.take(whole)
    return joined([boxes.take(whole), boxes.within(np.array(rows), np.array(low), np.array(high))])


def _box(boxes: Boxes, row: int) -> Box:
    return tuple(boxes.start[row].tolist()), tuple(boxes.stop[row].tolist())


def _minus(box: Box, other: Box) -> Iterator[Box]:
    """What remains of a box without another one, as disjoint boxes."""
    start, stop = box
    if any(a >= d or c >= b for a, b, c, d in zip(start, stop, *other, strict=True)):
        yield box
        return
    for axis, (low, high) in enumerate(zip(*other, strict=True)):
        if start[axis] < low:
            yield start, (*stop[:axis], low, *stop[axis + 1 :])
            start = (*start[:axis], low, *start[axis + 1 :])
        if high < stop[axis]:
            yield (*start[:axis], high, *start[axis + 1 :]), stop
            stop = (*stop[:axis], high, *stop[axis + 1 :])
