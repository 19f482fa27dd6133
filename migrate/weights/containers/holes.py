"""Parts of parameters that no file holds, where files do hold all that they say they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mappings.arrangement import Shape
from mappings.tiling import uncovered
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.tensors import SourceTensor


def holes(atoms: Mapping[str, Shape], tensors: Iterable[SourceTensor]) -> Iterator[Finding]:
    """Findings for atoms of which some index is nowhere, as where a rank without copies lacks its piece."""
    boxes: dict[str, set[tuple[Shape, Shape]]] = {name: set() for name in atoms}
    for tensor in tensors:
        for piece in tensor.stored.arrangement.pieces:
            if piece.atom in boxes:
                boxes[piece.atom].add((piece.start, piece.extent))
    for name, shape in atoms.items():
        if (hole := uncovered(shape, boxes[name])) is not None:
            yield finding("W001", f"incomplete: nothing holds index {list(hole)}", tensor=name)
