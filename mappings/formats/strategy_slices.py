"""What a layout of a strategy file means: which box of the whole tensor each rank of a pipeline stage holds.

The devices of a stage form a mesh; rank numbers run through it row by row, the last axis fastest. An axis of a tensor
is cut by none, one or several mesh axes. The parallel optimizer cuts axis 0 once more, inside each piece, over ranks
that would hold copies: those that differ on mesh axes which cut nothing, counted row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from mappings.arrangement import Arrangement, Shape
from mappings.formats.strategy import TensorLayout
from mappings.layout import MAX_RANKS


@dataclass(frozen=True)
class Slices:
    """How one tensor is cut over the ranks of a stage."""

    mesh: Shape
    """Sizes of the mesh axes, the last one fastest over the ranks."""
    cuts: tuple[Shape, ...]
    """For each axis of the tensor the mesh axes, from the left, that cut it, outermost first."""
    optimizer: int = 1
    """Pieces into which the parallel optimizer cuts axis 0 once more."""

    @property
    def ranks(self) -> int:
        """Ranks of a stage."""
        return math.prod(self.mesh)

    @property
    def counts(self) -> Shape:
        """Pieces along each axis of the tensor."""
        counts = [math.prod(self.mesh[axis] for axis in cut) for cut in self.cuts]
        return (counts[0] * self.optimizer, *counts[1:]) if counts else ()

    def indices(self, rank: int) -> Shape:
        """Which piece along each axis a rank holds."""
        return _table(self).indices[rank % self.ranks]

    def copies(self, rank: int) -> tuple[int, ...]:
        """Ranks of the stage that hold the same piece, ascending."""
        return _table(self).groups[rank % self.ranks]

    def whole(self, local: Sequence[int]) -> Shape:
        """Shape of the tensor of which every rank holds `local`.

        Raises:
            ValueError: the number of axes differs.
        """
        if len(local) != len(self.cuts):
            raise ValueError(f"shape {list(local)} has {len(local)} axes, the strategy cuts {len(self.cuts)}")
        return tuple(size * count for size, count in zip(local, self.counts, strict=True))

    def piece(self, tensor: Arrangement, rank: int) -> Arrangement:
        """The box of a whole tensor that a rank holds.

        Raises:
            ValueError: the number of axes differs, or the pieces are not equal: MindSpore has no uneven ones.
        """
        if len(tensor.shape) != len(self.cuts):
            raise ValueError(f"shape {list(tensor.shape)} has another number of axes than {len(self.cuts)}")
        for axis, (index, count) in enumerate(zip(self.indices(rank), self.counts, strict=True)):
            size, rest = divmod(tensor.shape[axis], count)
            if rest:
                raise ValueError(f"axis {axis} of {list(tensor.shape)} is not divisible by {count}")
            if count > 1:
                tensor = tensor.slice(axis, index * size, (index + 1) * size)
        return tensor


@dataclass(frozen=True)
class _Table:
    """For each rank of a stage."""

    indices: tuple[Shape, ...]
    groups: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def _table(cut: Slices) -> _Table:
    """All ranks at once: tensors by the thousand share a cut."""
    used = {axis for one in cut.cuts for axis in one}
    free = [axis for axis in range(len(cut.mesh)) if axis not in used]
    indices: list[Shape] = []
    groups: dict[Shape, list[int]] = {}
    for rank in range(cut.ranks):
        place = _coordinates(rank, cut.mesh)
        piece = [_number([place[a] for a in one], [cut.mesh[a] for a in one]) for one in cut.cuts]
        if cut.optimizer > 1:
            copy = _number([place[a] for a in free], [cut.mesh[a] for a in free])
            piece[0] = piece[0] * cut.optimizer + copy % cut.optimizer
        indices.append(tuple(piece))
        groups.setdefault(tuple(piece), []).append(rank)
    members = {piece: tuple(ranks) for piece, ranks in groups.items()}
    return _Table(tuple(indices), tuple(members[piece] for piece in indices))


def slices(layout: TensorLayout, axes: int) -> Slices:
    """The cut that a layout describes, for a tensor of a number of axes.

    Raises:
        ValueError: the layout contradicts itself or the tensor, or is an uneven one.
    """
    if layout.field or any(layout.param_split_shape):
        raise ValueError("is cut unevenly, which is not supported")
    if len(layout.dev_matrix) != 1 or not layout.dev_matrix[0] or min(layout.dev_matrix[0]) < 1:
        raise ValueError(f"dev_matrix {_text(layout.dev_matrix)} is no mesh")
    mesh = layout.dev_matrix[0]
    rows = layout.tensor_map
    # One row holds one mesh axis per axis of the tensor; several rows, or one that fits no other way, several.
    if len(rows) <= 1 and not (axes == 1 and len(rows[0] if rows else ()) > 1):
        rows = tuple((axis,) for row in rows for axis in row)
    else:
        rows = tuple(row for row in rows if row)
    if len(rows) != axes:
        raise ValueError(f"tensor_map {_text(layout.tensor_map)} is not one of {axes} axes")
    cuts = tuple(tuple(len(mesh) - 1 - axis for axis in row if axis != -1) for row in rows)
    used = [axis for cut in cuts for axis in cut]
    if any(not 0 <= axis < len(mesh) for axis in used) or len(set(used)) != len(used):
        raise ValueError(f"tensor_map {_text(layout.tensor_map)} does not fit dev_matrix {list(mesh)}")
    if math.prod(mesh) > MAX_RANKS:
        raise ValueError(f"dev_matrix {list(mesh)} has more than {MAX_RANKS} ranks")
    copies = math.prod(mesh) // math.prod(mesh[axis] for axis in used)
    pieces = layout.opt_weight_shard_size
    if not layout.opt_weight_shard_step or not pieces:
        pieces = 1
    elif pieces == -1:
        pieces = copies
    if pieces < 1 or copies % pieces or (pieces > 1 and not axes):
        raise ValueError(f"opt_weight_shard_size {layout.opt_weight_shard_size} does not divide {copies} copies")
    return Slices(mesh, cuts, pieces)


def tensor_layout(cut: Slices) -> TensorLayout:
    """The layout in a strategy file for a cut; the inverse of `slices`.

    Raises:
        ValueError: a file has no form for it.
    """
    mesh = cut.mesh
    axes = [tuple(len(mesh) - 1 - axis for axis in one) or (-1,) for one in cut.cuts]
    nested = any(len(one) > 1 for one in axes)
    if nested and len(axes) == 1:
        raise ValueError("a strategy file has no form for a vector that several mesh axes cut")
    rows = tuple(axes) if nested else (tuple(axis for (axis,) in axes),)
    step = 0
    if cut.optimizer > 1:
        used = {axis for one in cut.cuts for axis in one}
        free = max(axis for axis in range(len(mesh)) if axis not in used and mesh[axis] > 1)
        step = math.prod(mesh[free + 1 :])
    return TensorLayout((mesh,), rows, opt_weight_shard_step=step, opt_weight_shard_size=cut.optimizer if step else 0)


def _coordinates(rank: int, mesh: Sequence[int]) -> list[int]:
    place = []
    for size in reversed(mesh):
        rank, index = divmod(rank, size)
        place.append(index)
    return place[::-1]


def _number(place: Sequence[int], sizes: Sequence[int]) -> int:
    number = 0
    for index, size in zip(place, sizes, strict=True):
        number = number * size + index
    return number


def _text(rows: tuple[tuple[int, ...], ...]) -> str:
    return str([list(row) for row in rows])
