"""Whether sources that should hold the same elements do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from migrate.weights.engine.boxes import Ints
from migrate.weights.engine.copies import items
from migrate.weights.engine.copy_item import Item, Side, spans
from migrate.weights.engine.files import Files, read_into
from migrate.weights.engine.plan import Plan
from migrate.weights.engine.strided import view
from migrate.weights.engine.tiles import tiles
from migrate.weights.tensors import SourceTensor

SOFT = 2 << 20


@dataclass(frozen=True)
class Difference:
    """Two sources that should agree and do not."""

    kept: SourceTensor
    """The one that is used."""
    copy: SourceTensor
    byte: int | None
    """First byte of `copy` that differs; None where the dtypes do."""


def differences(plan: Plan, *, memory_budget: int, advance: Callable[[int], None]) -> list[Difference]:
    """Compares everything that is stored more than once, and reads all of it but what is the same file twice.

    Args:
        plan: which says what has to be equal.
        memory_budget: bytes of buffers.
        advance: told how many bytes were compared since the last call.

    Raises:
        UserError: a file cannot be read.
    """
    files = Files()
    first: dict[tuple[int, int], int | None] = {}
    comparison = _Comparison(plan, files, memory_budget)
    try:
        for item in items(plan.comparisons, 0, len(plan.comparisons)):
            key = (item.source.tensor, item.target.tensor)
            try:
                at = comparison.first(item)
            except OSError as error:
                name = plan.sources[item.target.tensor].stored.name
                raise UserError(f"tensor {name!r}: cannot be read: {error.strerror or error}") from error
            if at != -1 and (key not in first or at is None or (first[key] or 0) > at):
                first[key] = at
            advance(item.volume * int(plan.read_sizes[item.target.tensor]))
    finally:
        files.close()
    return [Difference(plan.sources[kept], plan.sources[copy], byte) for (kept, copy), byte in first.items()]


class _Comparison:
    def __init__(self, plan: Plan, files: Files, budget: int) -> None:
        self.plan, self.files, self.budget = plan, files, budget
        self._identity = cache(_identity)

    def first(self, item: Item) -> int | None:
        """First byte of the second source that differs; -1 where none does, None where the dtypes do."""
        kept, copy = (self.plan.sources[side.tensor] for side in (item.source, item.target))
        if kept.stored.dtype != copy.stored.dtype:
            return None
        size = int(self.plan.read_sizes[item.target.tensor])
        if self._is_same_place(kept, copy, item, size):
            return -1
        found: int = -1
        decoded = kept.decoder is not None or copy.decoder is not None
        for tile in tiles(
            [item], self._cost, soft=min(SOFT, self.budget), hard=self.budget, row=self._row, gather=decoded
        ):
            for part in tile.items:
                for at in self._unequal(part, size):
                    found = at if found < 0 else min(found, at)
        return found

    def _is_same_place(self, kept: SourceTensor, copy: SourceTensor, item: Item, size: int) -> bool:
        """Whether both are the very same bytes: files of replicas may be links to one file."""
        if kept.decoder is not None or copy.decoder is not None or item.source.steps != item.target.steps:
            return False
        places = {source.offset + side.at * size for source, side in ((kept, item.source), (copy, item.target))}
        return len(places) == 1 and self._identity(kept.path) == self._identity(copy.path)

    def _unequal(self, item: Item, size: int) -> Iterator[int]:
        left, right = (self._elements(side, size) for side in (item.source, item.target))
        unequal = left != right
        if not unequal.any():
            return
        places: Ints = np.flatnonzero(unequal.reshape(-1))
        index = np.unravel_index(places, unequal.shape) if unequal.ndim else ()
        flat = sum(
            (i * step for i, step in zip(index, item.target.steps, strict=True)), np.zeros(len(places), np.int64)
        )
        least = int(flat.argmin())
        pair = [np.ascontiguousarray(a.reshape(-1)[places[least]]).reshape(1).view(np.uint8) for a in (left, right)]
        yield (item.target.at + int(flat[least])) * size + int((pair[0] != pair[1]).argmax())

    def _elements(self, side: Side, size: int) -> npt.NDArray[Any]:
        source = self.plan.sources[side.tensor]
        if source.decoder is not None:
            row = self._row(side.tensor)
            first, last = side.at // row, -(-side.stop // row)
            rows = np.ascontiguousarray(source.decoder.rows(first, last, self._read)).reshape(-1).view(np.uint8)
            return view(rows, size, side.at - first * row, side.extent, side.steps)
        raw = np.frombuffer(
            self._read(source.path, source.offset + side.at * size, (side.stop - side.at) * size), np.uint8
        )
        return view(raw, size, 0, side.extent, side.steps)

    def _read(self, path: Path, offset: int, count: int) -> memoryview:
        buffer = memoryview(bytearray(count))
        with self.files.use(path) as fd:
            read_into(fd, buffer, offset)
        return buffer

    def _row(self, source: int) -> int:
        tensor = self.plan.sources[source]
        return 1 if tensor.decoder is None else max(1, *tensor.stored.arrangement.shape[-1:])

    def _cost(self, items: Sequence[Item], alone: bool) -> int:
        total = 0
        for span in (*spans([i.source for i in items]), *spans([i.target for i in items])):
            decoder = self.plan.sources[span.tensor].decoder
            row = self._row(span.tensor)
            each = int(self.plan.read_sizes[span.tensor]) if decoder is None else decoder.row_bytes // row + 1
            total += 2 * span.size * each
        return total


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
