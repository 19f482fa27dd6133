"""`Arrangement`: which elements of which parameters make up a stored tensor, in which order.

Every checkpoint layout is one arrangement per stored tensor, over the same small parameters (*atoms*). Fused
projections, interleaved rows, stacked and transposed experts, slices of ranks and zero padding are all built with the
few functions here, whose meaning is that of numpy. Two layouts then need no converter of their own: where the boxes of
an atom in one and in the other meet, bytes are copied.

A box of an atom lies in a stored tensor *affinely*: an index of the atom moves the place by a constant stride. That
makes inverses free, proofs cheap (`mappings/tiling.py`) and copies plain strided ones, however the tensor was made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of an atom and where it lies: along each of its axes, every `step`-th index of one axis of the tensor."""

    atom: str
    start: Shape
    """First index of the box in the atom."""
    extent: Shape
    at: Shape
    """Index in the tensor of the first element of the box."""
    axes: Shape
    """For each axis of the atom, the axis of the tensor along which it runs."""
    steps: Shape
    """And by how many indices of that axis for one of the atom."""

    def taken(self, axis: int, first: int, count: int) -> Piece:
        """The part of the box with `count` indices along an axis of the atom, from the `first` of the box on."""
        at = list(self.at)
        if first:
            at[self.axes[axis]] += first * self.steps[axis]
        start, extent = list(self.start), list(self.extent)
        start[axis] += first
        extent[axis] = count
        return replace(self, start=tuple(start), extent=tuple(extent), at=tuple(at))


@dataclass(frozen=True, slots=True)
class Placement:
    """A box of an atom in a stored tensor, in elements from the tensor's first one."""

    atom: str
    start: Shape
    extent: Shape
    offset: int
    strides: Shape


@dataclass(frozen=True)
class Arrangement:
    """A tensor of a layout. Elements that no piece covers are zeros (padding)."""

    shape: Shape
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, atom: str, shape: Sequence[int]) -> Arrangement:
        """An atom as it is."""
        axes, zeros = tuple(range(len(shape))), (0,) * len(shape)
        return cls(tuple(shape), (Piece(atom, zeros, tuple(shape), zeros, axes, (1,) * len(axes)),))

    @classmethod
    def zeros(cls, shape: Sequence[int]) -> Arrangement:
        """Padding."""
        return cls(tuple(shape), ())

    @property
    def size(self) -> int:
        """Number of elements, padding included."""
        return math.prod(self.shape)

    @property
    def padding(self) -> int:
        """Number of elements that no piece covers."""
        return self.size - sum(math.prod(piece.extent) for piece in self.pieces)

    def slice(self, axis: int, start: int, stop: int) -> Arrangement:
        """Indices `start:stop` along an axis.

        Raises:
            ValueError: the range is not inside the tensor.
        """
        if not 0 <= start <= stop <= self.shape[axis]:
            raise ValueError(f"{start}:{stop} is outside axis {axis} of {self.shape}")
        pieces = [_moved(part, axis, -start) for piece in self.pieces for part in _clipped(piece, axis, start, stop)]
        return Arrangement(_with(self.shape, axis, stop - start), tuple(pieces))

    def pad(self, axis: int, size: int) -> Arrangement:
        """Zeros behind the last index, up to `size` indices along an axis.

        Raises:
            ValueError: the tensor is longer.
        """
        if size < self.shape[axis]:
            raise ValueError(f"axis {axis} of {self.shape} is longer than {size}")
        return Arrangement(_with(self.shape, axis, size), self.pieces)

    def transpose(self, *order: int) -> Arrangement:
        """Axes in another order (reversed if none is given).

        Raises:
            ValueError: `order` is no permutation.
        """
        order = order or tuple(reversed(range(len(self.shape))))
        if sorted(order) != list(range(len(self.shape))):
            raise ValueError(f"{order} is no order of the axes of {self.shape}")
        new = {old: place for place, old in enumerate(order)}
        pieces = [
            replace(p, at=tuple(p.at[old] for old in order), axes=tuple(new[axis] for axis in p.axes))
            for p in self.pieces
        ]
        return Arrangement(tuple(self.shape[old] for old in order), tuple(pieces))

    def reshape(self, *shape: int) -> Arrangement:
        """Another shape over the same elements in the same order; one size may be -1.

        Raises:
            ValueError: the number of elements differs.
        """
        known = math.prod(size for size in shape if size != -1)
        if shape.count(-1) == 1 and known and self.size % known == 0:
            shape = tuple(self.size // known if size == -1 else size for size in shape)
        if -1 in shape or math.prod(shape) != self.size:
            raise ValueError(f"{self.shape} cannot take the shape {shape}")
        if shape == self.shape:
            return self
        old, new = strides(self.shape), strides(shape)
        pieces: list[Piece] = []
        for piece in self.pieces:
            flat = [step * old[axis] for axis, step in zip(piece.axes, piece.steps, strict=True)]
            offset = sum(index * stride for index, stride in zip(piece.at, old, strict=True))
            pieces += _placed(piece, offset, flat, shape, new)
        return Arrangement(shape, tuple(pieces))

    def placements(self) -> Iterator[Placement]:
        """The boxes, as offsets and strides in elements."""
        unit = strides(self.shape)
        for piece in self.pieces:
            yield Placement(
                piece.atom,
                piece.start,
                piece.extent,
                sum(index * stride for index, stride in zip(piece.at, unit, strict=True)),
                tuple(step * unit[axis] for axis, step in zip(piece.axes, piece.steps, strict=True)),
            )


def concat(axis: int, parts: Sequence[Arrangement]) -> Arrangement:
    """Tensors one behind the other along an axis.

    Raises:
        ValueError: there is none, or they differ along another axis.
    """
    if not parts:
        raise ValueError("nothing to concatenate")
    first = parts[0].shape
    pieces: list[Piece] = []
    length = 0
    for part in parts:
        if len(part.shape) != len(first) or _with(part.shape, axis, 0) != _with(first, axis, 0):
            raise ValueError(f"{part.shape} and {first} differ off axis {axis}")
        pieces += [_moved(piece, axis, length) for piece in part.pieces] if length else part.pieces
        length += part.shape[axis]
    return Arrangement(_with(first, axis, length), tuple(pieces))


def stack(axis: int, parts: Sequence[Arrangement]) -> Arrangement:
    """Tensors of one shape along a new axis.

    Raises:
        ValueError: there is none, or their shapes differ.
    """
    return concat(axis, [part.reshape(*part.shape[:axis], 1, *part.shape[axis:]) for part in parts])


def viewed(arrangement: Arrangement, strides: Shape) -> Arrangement:
    """The line of memory in which the elements of a tensor lie, from its first to its last one."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(arrangement.shape, strides, strict=True))
    pieces = (
        replace(
            piece,
            at=(sum(index * stride for index, stride in zip(piece.at, strides, strict=True)),),
            axes=(0,) * len(piece.axes),
            steps=tuple(step * strides[axis] for axis, step in zip(piece.axes, piece.steps, strict=True)),
        )
        for piece in arrangement.pieces
    )
    return Arrangement((length,), tuple(pieces))


def strides(shape: Sequence[int]) -> Shape:
    """Elements between neighbours along each axis of a tensor stored row by row."""
    result = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        result[axis] = result[axis + 1] * max(shape[axis + 1], 1)
    return tuple(result)


def _with(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _moved(piece: Piece, axis: int, by: int) -> Piece:
    return replace(piece, at=_with(piece.at, axis, piece.at[axis] + by)) if by else piece


def _clipped(piece: Piece, axis: int, start: int, stop: int) -> Iterator[Piece]:
    """The parts of a piece whose index along an axis of the tensor lies in `start:stop`."""
    along = [a for a, other in enumerate(piece.axes) if other == axis and piece.extent[a] > 1]
    if len(along) > 1:
        outer = max(along, key=lambda a: piece.steps[a])
        for index in range(piece.extent[outer]):
            yield from _clipped(piece.taken(outer, index, 1), axis, start, stop)
        return
    at = piece.at[axis]
    if not along:
        if start <= at < stop:
            yield piece
        return
    step, count = piece.steps[along[0]], piece.extent[along[0]]
    first = max(0, -((at - start) // step))
    last = min(count, -((at - stop) // step))
    if first < last:
        yield piece if last - first == count else piece.taken(along[0], first, last - first)


def _placed(piece: Piece, offset: int, flat: Sequence[int], shape: Shape, unit: Shape) -> Iterator[Piece]:
    """A box with an offset and strides in elements as pieces of a tensor of `shape`, cut where it wraps around."""
    at = tuple(offset // stride % max(size, 1) for stride, size in zip(unit, shape, strict=True))
    used = list(at)
    axes, steps = [], []
    for a, stride in enumerate(flat):
        count = piece.extent[a]
        place = next((t for t, size in enumerate(shape) if size > 1 and unit[t] <= stride), 0)
        step, rest = divmod(stride, unit[place])
        if count > 1 and (rest or used[place] + (count - 1) * step >= shape[place]):
            fits = (shape[place] - 1 - at[place]) // step + 1 if not rest else 1
            take = fits if fits < count else (count + 1) // 2  # the half: an axis before this one shares its place
            for first, extent in ((0, take), (take, count - take)):
                start, box = _with(piece.start, a, piece.start[a] + first), _with(piece.extent, a, extent)
                yield from _placed(replace(piece, start=start, extent=box), offset + first * stride, flat, shape, unit)
            return
        used[place] += (count - 1) * step
        axes.append(place)
        steps.append(step if count > 1 else 0)
    yield Piece(piece.atom, piece.start, piece.extent, at, tuple(axes), tuple(steps))
