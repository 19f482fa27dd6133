"""Reads what a tile needs, each byte once: whole ranges if most of them is used, else run by run; or decodes rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from migrate.weights.engine.arena import ALIGNMENT, Arena, Buffer
from migrate.weights.engine.copy_item import Side, Span, spans
from migrate.weights.engine.files import Files, read_into
from migrate.weights.engine.plan import Plan
from migrate.weights.engine.runs import stretches
from migrate.weights.engine.strided import WORDS, view
from migrate.weights.tensors import Decoder

SLAB = 4 << 20  # bytes that a decoder works with at a time


@dataclass(frozen=True)
class Places:
    """Where things are: path and first byte of each source and each target."""

    source_paths: Sequence[Path]
    source_offsets: Sequence[int]
    target_paths: Sequence[Path]
    target_offsets: Sequence[int]


class Reader:
    """The reading half of a thread."""

    def __init__(self, plan: Plan, places: Places, files: Files, arena: Arena, budget: int) -> None:
        self.plan, self.places, self.files, self.arena = plan, places, files, arena
        self.slab_bytes = min(SLAB, budget // 4)
        self.sizes: list[int] = plan.read_sizes.tolist()
        self.bytes_read = 0

    def row(self, source: int) -> int:
        """Elements of which reading takes all or none."""
        tensor = self.plan.sources[source]
        return 1 if tensor.decoder is None else max(1, *tensor.stored.arrangement.shape[-1:])

    def needs(self, sides: Sequence[Side]) -> tuple[int, int]:
        """Bytes of the arena that reading takes, and of other memory that decoders take."""
        buffers = decoded = 0
        for span in spans(sides):
            decoder, size = self.plan.sources[span.tensor].decoder, self.sizes[span.tensor]
            if decoder is not None:
                first, last = self._rows(span)
                buffers += ALIGNMENT + (last - first) * self.row(span.tensor) * size
                decoded = max(decoded, min(last - first, self._slab(decoder)) * decoder.row_bytes)
            else:
                used = _used(span, sides)
                buffers += size * (span.size if 2 * used >= span.size else used) + ALIGNMENT * len(span.members)
        return buffers, decoded

    def read(self, sides: Sequence[Side]) -> list[npt.NDArray[Any]]:
        """The elements of each side, as views of the arena.

        Raises:
            OSError: a file cannot be read, or became shorter.
            UserError: a decoder gave something else than it should.
        """
        result: list[Any] = [None] * len(sides)
        for span in spans(sides):
            size, decoder = self.sizes[span.tensor], self.plan.sources[span.tensor].decoder
            if decoder is None and 2 * _used(span, sides) < span.size:
                seen: dict[Side, npt.NDArray[Any]] = {}
                for number in span.members:
                    side = sides[number]
                    if side not in seen:
                        seen[side] = self._packed(side)
                    result[number] = seen[side]
                continue
            buffer, begin = self._range(span) if decoder is None else self._decoded(span, decoder)
            for number in span.members:
                side = sides[number]
                result[number] = view(buffer, size, side.at - begin, side.extent, side.steps)
        return result

    def _range(self, span: Span) -> tuple[Buffer, int]:
        """All of a range, and the element with which it begins."""
        size = self.sizes[span.tensor]
        buffer = self.arena.take(span.size * size)
        with self.files.use(self.places.source_paths[span.tensor]) as fd:
            read_into(fd, buffer.data, self.places.source_offsets[span.tensor] + span.start * size)
        self.bytes_read += len(buffer)
        return buffer, span.start

    def _packed(self, side: Side) -> npt.NDArray[Any]:
        """Only the elements of a side, run by run, without gaps."""
        size = self.sizes[side.tensor]
        buffer = self.arena.take(side.volume * size)
        order = sorted(range(len(side.extent)), key=lambda axis: -side.steps[axis])
        base, rest = self.places.source_offsets[side.tensor], buffer.data
        with self.files.use(self.places.source_paths[side.tensor]) as fd:
            for start, count in stretches(side, order):
                read_into(fd, rest[: count * size], base + start * size)
                rest = rest[count * size :]
        self.bytes_read += len(buffer)
        packed = buffer.view(WORDS[size]).reshape([side.extent[axis] for axis in order])
        return packed.transpose(np.argsort(order)) if order else packed

    def _decoded(self, span: Span, decoder: Decoder) -> tuple[Buffer, int]:
        """Whole rows of a decoded tensor, and the element with which they begin."""
        first, last = self._rows(span)
        row, size = self.row(span.tensor), self.sizes[span.tensor]
        buffer = self.arena.take((last - first) * row * size)
        rest, slab = buffer, self._slab(decoder)
        for start in range(first, last, slab):
            count = min(slab, last - start)
            rows = np.ascontiguousarray(decoder.rows(start, start + count, self._bytes)).reshape(-1).view(np.uint8)
            if rows.size != count * row * size:
                raise UserError(f"decoder gave {rows.size} bytes for {count} rows of {row} elements")
            rest[: rows.size] = rows
            rest = rest[rows.size :]
        return buffer, first * row

    def _rows(self, span: Span) -> tuple[int, int]:
        """First row of a decoded tensor that a range needs, and the row behind the last."""
        row = self.row(span.tensor)
        return span.start // row, -(-span.stop // row)

    def _slab(self, decoder: Decoder) -> int:
        """Rows that are decoded at a time."""
        return max(1, self.slab_bytes // max(1, decoder.row_bytes))

    def _bytes(self, path: Path, offset: int, count: int) -> memoryview:
        buffer = memoryview(bytearray(count))
        with self.files.use(path) as fd:
            read_into(fd, buffer, offset)
        self.bytes_read += count
        return buffer


def _used(span: Span, sides: Sequence[Side]) -> int:
    """Elements of a range that are used, at most."""
    return min(span.size, sum(sides[number].volume for number in span.members))
