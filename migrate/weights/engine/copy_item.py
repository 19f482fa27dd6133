"""One strided copy, and its parts: by index of an axis, and by range of the source or of the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """A strided region of a tensor, in elements. Axes are ordered by the strides in the target, the widest first."""

    tensor: int
    at: int
    """First element."""
    extent: Numbers
    steps: Numbers

    @property
    def stop(self) -> int:
        """Behind the last element."""
        return self.at + sum([(count - 1) * step for count, step in zip(self.extent, self.steps, strict=True)]) + 1

    @property
    def volume(self) -> int:
        """Number of elements."""
        result = 1
        for count in self.extent:
            result *= count
        return result

    @property
    def widest(self) -> int | None:
        """The axis with the largest step, or None for a single element."""
        axes = [axis for axis, count in enumerate(self.extent) if count > 1]
        return max(axes, key=lambda axis: self.steps[axis]) if axes else None

    def taken(self, axis: int, first: int, count: int) -> Side:
        """`count` indices of an axis from the `first` on."""
        extent = (*self.extent[:axis], count, *self.extent[axis + 1 :])
        return Side(self.tensor, self.at + first * self.steps[axis], extent, self.steps)


@dataclass(frozen=True, slots=True)
class Item:
    """A copy: the same extents in the source and in the target."""

    source: Side
    target: Side

    @property
    def volume(self) -> int:
        """Number of elements."""
        return self.source.volume

    def taken(self, axis: int, first: int, count: int) -> Item:
        """`count` indices of an axis from the `first` on."""
        if not first and count == self.source.extent[axis]:
            return self
        return Item(self.source.taken(axis, first, count), self.target.taken(axis, first, count))

    def side(self, reading: bool) -> Side:
        """The source, or the target."""
        return self.source if reading else self.target

    def within(self, reading: bool, low: int, high: int) -> Iterator[Item]:
        """The parts whose elements lie in `low:high` of the source or of the target."""
        side = self.side(reading)
        start, stop = side.at, side.stop
        if stop <= low or start >= high:
            return
        if low <= start and stop <= high:
            yield self
            return
        axis = side.widest
        assert axis is not None
        step, count = side.steps[axis], side.extent[axis]
        inner = stop - start - (count - 1) * step
        first = max(0, -((start - low) // step))  # whole indices
        last = min(count, (high - inner - start) // step + 1)
        touched = max(0, (low - inner - start) // step + 1), min(count, -((start - high) // step))
        if first < last:
            yield self.taken(axis, first, last - first)
        else:
            first = last = touched[1]
        for index in (*range(touched[0], first), *range(last, touched[1])):
            yield from self.taken(axis, index, 1).within(reading, low, high)


@dataclass(frozen=True, slots=True)
class Span:
    """Sides that overlap in one tensor, and the range they lie in."""

    tensor: int
    start: int
    stop: int
    members: Numbers
    """Which of the sides."""

    @property
    def size(self) -> int:
        """Elements of the range."""
        return self.stop - self.start


def spans(sides: Sequence[Side]) -> list[Span]:
    """The sides grouped by ranges that touch or overlap."""
    order = sorted(range(len(sides)), key=lambda number: (sides[number].tensor, sides[number].at))
    result: list[Span] = []
    members: list[int] = []
    tensor, start, stop = -1, 0, -1
    for number in order:
        side = sides[number]
        if members and (side.tensor != tensor or side.at > stop):
            result.append(Span(tensor, start, stop, tuple(members)))
            members = []
        if not members:
            tensor, start, stop = side.tensor, side.at, side.stop
        members.append(number)
        stop = max(stop, side.stop)
    if members:
        result.append(Span(tensor, start, stop, tuple(members)))
    return result
