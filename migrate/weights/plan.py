"""A plan of a conversion: which bytes of which source tensor become which bytes of which target, and its proof."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mappings.formats.safetensors import DTYPE_BITS, TensorEntry


@dataclass(frozen=True)
class Source:
    """A tensor that is read. Its last `padding` indices along the axis of its assignment are not used."""

    entry: TensorEntry
    padding: int = 0


@dataclass(frozen=True)
class Target:
    """A tensor that is written. Its last `padding` indices along the axis of its assignment are zeros."""

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    padding: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the data, padding included."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class Piece:
    """`count` indices along the axis of the assignment, from a source to a target."""

    source: Source
    target: Target
    source_start: int
    target_start: int
    count: int


@dataclass(frozen=True)
class Assignment:
    """How one parameter moves: all sources it is read from and all targets it is written to."""

    name: str
    axis: int
    replicated: bool
    """Whether every target takes a whole copy; otherwise each source index goes to exactly one place."""
    pieces: tuple[Piece, ...]
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class TargetFile:
    """A file to write: its tensors in storage order."""

    name: str
    targets: tuple[Target, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything that will be written, and where it comes from."""

    files: tuple[TargetFile, ...]
    assignments: tuple[Assignment, ...]
    unused: tuple[TensorEntry, ...] = ()
    """Source tensors that are left out on purpose."""

    @property
    def bytes_minimum(self) -> int:
        """Bytes that cannot be avoided: every target without its padding."""
        return sum(piece_bytes(a, piece) for a in self.assignments for piece in a.pieces)

    @property
    def bytes_written(self) -> int:
        """Tensor bytes of all files, padding included."""
        return sum(target.nbytes for file in self.files for target in file.targets)


class PlanError(RuntimeError):
    """A plan that is not exact: a defect of msmigrate, found before anything is written."""


def extent(shape: tuple[int, ...], axis: int) -> int:
    """Length along an axis; a scalar counts as one index."""
    return shape[axis] if shape else 1


def piece_bytes(assignment: Assignment, piece: Piece) -> int:
    """Data bytes that a piece moves."""
    shape = piece.source.entry.shape
    others = math.prod(size for axis, size in enumerate(shape) if axis != assignment.axis)
    return others * piece.count * piece.source.entry.itemsize


def prove(plan: Plan, available: Iterable[TensorEntry]) -> None:
    """Checks that the plan is exact, by interval arithmetic on headers alone.

    Every target of every file is made exactly once and completely (padding aside); every source tensor is used, each of
    its indices once, or once per target where the parameter is replicated, or is left out on purpose; dtypes and the
    other axes agree.

    Raises:
        PlanError: it is not.
    """
    made: set[tuple[str, str]] = set()
    used: set[tuple[str, str]] = set()
    for assignment in plan.assignments:
        for piece in assignment.pieces:
            _check_piece(assignment, piece)
        targets = {(target.file, target.name): target for target in assignment.targets}
        sources = {(str(source.entry.path), source.entry.name): source for source in assignment.sources}
        if again := made & set(targets):
            raise PlanError(f"written twice: {sorted(again)[:5]}")
        made |= set(targets)
        used |= set(sources)
        _check_targets(assignment, targets)
        _check_sources(assignment, sources)
    _check_sets("targets", {(file.name, target.name) for file in plan.files for target in file.targets}, made)
    unused = {(str(entry.path), entry.name) for entry in plan.unused}
    if both := used & unused:
        raise PlanError(f"both used and left out: {sorted(both)[:5]}")
    _check_sets("sources", {(str(entry.path), entry.name) for entry in available}, used | unused)


def _check_targets(assignment: Assignment, targets: Mapping[tuple[str, str], Target]) -> None:
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {key: [] for key in targets}
    for piece in assignment.pieces:
        key = (piece.target.file, piece.target.name)
        if targets.get(key) != piece.target:
            raise PlanError(f"{assignment.name}: a piece goes to {key}, which the assignment does not list")
        spans[key].append((piece.target_start, piece.count))
    for key, target in targets.items():
        _check_tiling(f"target {key}", spans[key], extent(target.shape, assignment.axis) - target.padding)


def _check_sources(assignment: Assignment, sources: Mapping[tuple[str, str], Source]) -> None:
    copies = len(assignment.targets) if assignment.replicated else 1
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {key: [] for key in sources}
    for piece in assignment.pieces:
        key = (str(piece.source.entry.path), piece.source.entry.name)
        if sources.get(key) != piece.source:
            raise PlanError(f"{assignment.name}: a piece comes from {key}, which the assignment does not list")
        spans[key].append((piece.source_start, piece.count))
    for key, source in sources.items():
        size = extent(source.entry.shape, assignment.axis) - source.padding
        if not assignment.replicated:
            _check_tiling(f"source {key}", spans[key], size)
        elif spans[key] != [(0, size)] * copies:
            raise PlanError(f"source {key}: a replicated parameter is not copied whole to each of {copies} targets")


def _check_piece(assignment: Assignment, piece: Piece) -> None:
    source, target, axis = piece.source.entry, piece.target, assignment.axis
    rest = [shape[:axis] + shape[axis + 1 :] for shape in (source.shape, target.shape)]
    if rest[0] != rest[1] or source.dtype != target.dtype:
        raise PlanError(
            f"{assignment.name}: {source.dtype} {source.shape} and {target.dtype} {target.shape} differ off axis {axis}"
        )


def _check_tiling(what: str, spans: list[tuple[int, int]], size: int) -> None:
    position = 0
    for start, count in sorted(spans):
        if start != position or count < 1:
            raise PlanError(f"{what}: index {min(start, position)} is covered not exactly once")
        position += count
    if position != size:
        raise PlanError(f"{what}: {position} of {size} indices are covered")


def _check_sets(what: str, expected: set[tuple[str, str]], found: set[tuple[str, str]]) -> None:
    if expected != found:
        raise PlanError(
            f"{what}: unaccounted {sorted(expected - found)[:5]}, from nowhere {sorted(found - expected)[:5]}"
        )
