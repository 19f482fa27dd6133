"""Proofs about a plan, by arithmetic on headers alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mappings.arrangement import Shape
from mappings.errors import UserError
from mappings.tiling import overlap, uncovered
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.engine.boxes import Boxes, Ints
from migrate.weights.tensors import Stored


class PlanError(UserError):
    """Layouts that contradict themselves, found before anything is written."""


def tiled(tensors: Sequence[Stored], boxes: Boxes, *, read: bool = False) -> None:
    """Proves that the pieces of each tensor lie inside it and apart from each other.

    Args:
        tensors: to look at.
        boxes: all their pieces.
        read: of sources, in which one element may stand for many (an expanded view has steps of 0).

    Raises:
        PlanError: names the tensor.
    """
    sizes = np.array([tensor.arrangement.size for tensor in tensors], np.int64)
    order = np.argsort(boxes.steps, axis=1, kind="stable")
    steps = np.take_along_axis(boxes.steps, order, axis=1)
    extent = np.take_along_axis(boxes.extent, order, axis=1)
    if read:
        extent = np.where(steps == 0, 1, extent)
    reach = (extent - 1) * steps
    before = np.cumsum(reach, axis=1) - reach  # how far the axes with smaller steps go
    apart = ((steps > before) | (extent == 1)).all(axis=1)
    inside = (boxes.offset >= 0) & (boxes.offset + reach.sum(axis=1) < sizes[boxes.tensor])
    pieces = np.bincount(boxes.tensor, minlength=len(tensors)) if len(tensors) else np.empty(0, np.int64)
    doubtful = np.unique(boxes.tensor[~(apart & inside)])
    for number in np.union1d(doubtful, np.flatnonzero(pieces > 1)).tolist():
        tensor = tensors[number]
        if (both := overlap(tensor.arrangement)) is not None:
            raise PlanError(
                f"{tensor.file}: tensor {tensor.name!r}: {both[0].atom} and {both[1].atom} claim the same elements, "
                f"or lie outside {list(tensor.arrangement.shape)}"
            )


def available(
    wanted: Boxes, rows: Ints, volumes: Ints, atoms: Sequence[str], targets: Sequence[Stored]
) -> list[Finding]:
    """Findings for target pieces that the sources do not cover. `rows[i]` gets `volumes[i]` elements, none twice."""
    got = np.zeros(len(wanted), np.int64)
    np.add.at(got, rows, volumes)
    want = wanted.volume
    if (got > want).any():
        raise PlanError(f"{atoms[int(wanted.atom[int(np.argmax(got > want))])]}: elements would be written twice")
    return [
        finding(
            "W019",
            f"{got[row]} of {want[row]} elements of {atoms[int(wanted.atom[row])]} are in the source",
            file=targets[int(wanted.tensor[row])].file,
            tensor=targets[int(wanted.tensor[row])].name,
        )
        for row in np.flatnonzero(got < want).tolist()
    ]


def covered(
    wanted: Boxes, shapes: Mapping[str, Shape], atoms: Sequence[str], dropped: Collection[str]
) -> list[Finding]:
    """Findings for atoms of which the targets lack elements."""
    rank = wanted.start.shape[1]
    size = np.array([(*shape, *(1,) * (rank - len(shape))) for shape in shapes.values()], np.int64).reshape(-1, rank)
    known = wanted.atom < len(size)
    row, atom = np.flatnonzero(known), wanted.atom[known]
    beyond = (wanted.stop[row] > size[atom]).any(axis=1) if len(row) else np.zeros(0, bool)
    if beyond.any():
        raise PlanError(f"{atoms[int(atom[int(beyond.argmax())])]}: pieces lie outside the parameter")
    full = np.zeros(len(size), bool)
    full[atom[(wanted.extent[row] == size[atom]).all(axis=1)]] = True
    partial = row[~full[atom]] if len(row) else row
    table = _distinct(np.column_stack([wanted.atom[partial], wanted.start[partial], wanted.extent[partial]]))
    bounds = np.searchsorted(table[:, 0], np.arange(len(size) + 1)).tolist()
    boxes = np.ascontiguousarray(table[:, 1:])
    cache: dict[tuple[Shape, bytes], Shape | None] = {}
    findings = []
    for number in np.flatnonzero(~full).tolist():
        if atoms[number] in dropped:
            continue
        mine = boxes[bounds[number] : bounds[number + 1]]
        shape = tuple(size[number].tolist())
        key = shape, mine.tobytes()
        if key not in cache:
            cache[key] = uncovered(shape, [(tuple(line[:rank]), tuple(line[rank:])) for line in mine.tolist()])
        if (hole := cache[key]) is not None:
            at = list(hole[: len(shapes[atoms[number]])])
            findings.append(finding("W020", f"nothing that is written holds index {at}", tensor=atoms[number]))
    return findings


def _distinct(table: Ints) -> Ints:
    """Rows in order, each once."""
    table = table[np.lexsort(table.T[::-1])]
    new = np.ones(len(table), bool)
    new[1:] = (table[1:] != table[:-1]).any(axis=1)
    return table[new]
