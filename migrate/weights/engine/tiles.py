"""Tiles: parts of a unit small enough for the buffers of one thread.

Where all copies of a unit advance together along their widest axis in the sources as in the targets, a tile takes some
indices of it: ranges are read once and written once, each in one piece. Transposes have no such axis: they go whole if
they fit, else by ranges of the one tensor that gathers or scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from migrate.weights.engine.copy_item import Item, Span, spans

Items = Sequence[Item]
Cost = Callable[[Items, bool], int]


@dataclass(frozen=True, slots=True)
class Tile:
    """Copies that are made together."""

    items: tuple[Item, ...]
    alone: bool
    """Whether what lies between the elements in the targets' ranges is padding, not work of other tiles."""


def tiles(items: Items, cost: Cost, *, soft: int, hard: int, row: Callable[[int], int], gather: bool) -> Iterator[Tile]:
    """Cuts a unit.

    Args:
        items: the unit.
        cost: bytes of buffers that some copies need together; the second argument is `alone` of their tile.
        soft: bytes that are enough for good speed.
        hard: bytes that may not be exceeded.
        row: for a source tensor, the multiple of elements at which reading may begin (1 for plain bytes).
        gather: whether sources should be read in order even if writing is then scattered: they are costly to read.
    """
    total = cost(items, True)
    if total <= soft:
        yield Tile(tuple(items), alone=True)
        return
    length = _common_axis(items)
    if length is not None:
        alone = _rows_apart(items)
        step = _aligned(items, max(1, length * soft // total), row)
        while (smaller := _aligned(items, max(1, step // 2), row)) < step and _first(items, step, cost, alone) > hard:
            step = smaller
        if _first(items, step, cost, alone) <= hard:
            for first in range(0, length, step):
                part = tuple(_along(item, first, min(step, length - first)) for item in items)
                yield Tile(part, alone)
            return
    if total <= hard:
        yield Tile(tuple(items), alone=True)
        return
    sources = {item.source.tensor for item in items}
    targets = {item.target.tensor for item in items}
    reading = gather or (len(sources) == 1 and len(targets) > 1)
    for span in spans([item.side(reading) for item in items]):
        yield from _windows([items[number] for number in span.members], span, reading, cost, hard, row)


def _windows(
    items: Items, span: Span, reading: bool, cost: Cost, hard: int, row: Callable[[int], int]
) -> Iterator[Tile]:
    widest = max((item.side(reading) for item in items), key=lambda side: max(side.steps, default=1))
    unit = max(max(widest.steps, default=1), row(span.tensor) if reading else 1)
    size = span.size
    low = span.start
    while low < span.stop:
        # The largest window that fits, for it gives the longest runs on the other side: halved until it does, in whole
        # rows as long as there are several.
        while True:
            high = min(low + size, span.stop)
            if size > unit and high < span.stop:
                high -= (high - span.start) % unit
            part = [piece for item in items for piece in item.within(reading, low, high)]
            alone = not reading and _one_target(part)
            if cost(part, alone) <= hard or high - low <= 1:
                break
            size = max(1, (high - low) // 2)
        if part:
            yield Tile(tuple(part), alone)
        low = high


def _one_target(items: Items) -> bool:
    return len({item.target.tensor for item in items}) == 1


def _common_axis(items: Items) -> int | None:
    """Length of the widest axis, if it is the same axis for all copies, in the sources as in the targets."""
    lengths = set()
    for item in items:
        axis = item.target.widest
        if axis is None or item.source.widest != axis:
            return None
        lengths.add(item.target.extent[axis])
    return lengths.pop() if len(lengths) == 1 else None


def _along(item: Item, first: int, count: int) -> Item:
    axis = item.target.widest
    assert axis is not None
    return item.taken(axis, first, count)


def _first(items: Items, step: int, cost: Cost, alone: bool) -> int:
    """What the first `step` indices cost."""
    return cost([_along(item, 0, min(step, item.target.extent[item.target.widest or 0])) for item in items], alone)


def _aligned(items: Items, count: int, row: Callable[[int], int]) -> int:
    """At most `count` indices, but whole rows of every source."""
    for item in items:
        axis = item.source.widest
        assert axis is not None
        step = item.source.steps[axis]
        multiple = -(-row(item.source.tensor) // step)
        count = max(multiple, count - count % multiple)
    return count


def _rows_apart(items: Items) -> bool:
    """Whether in every range of a target, what one index of the widest axis covers ends before the next begins."""
    sides = [item.target for item in items]
    for span in spans(sides):
        starts, stops, steps = [], [], set()
        for number in span.members:
            side = sides[number]
            axis = side.widest
            assert axis is not None
            starts.append(side.at)
            stops.append(side.taken(axis, 0, 1).stop)
            steps.add(side.steps[axis])
        if len(steps) != 1 or max(stops) - min(starts) > steps.pop():
            return False
    return True
