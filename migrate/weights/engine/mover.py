"""Makes one unit: reads what it needs once, scatters it into buffers laid out like the targets, writes those once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mappings.errors import UserError
from migrate.weights.engine.casts import FLOATS, cast
from migrate.weights.engine.copies import items
from migrate.weights.engine.copy_item import Item, Side, Span, spans
from migrate.weights.engine.files import Files, read_into, write_all
from migrate.weights.engine.plan import Plan
from migrate.weights.engine.runs import kernel_copy, runs, stretches
from migrate.weights.engine.strided import WORDS, move, view
from migrate.weights.engine.tiles import Tile, tiles

KERNEL_CHUNK = 16 << 20  # bytes per copy_file_range call, so that progress moves
ALIGNMENT = 64  # of parts of a buffer
SOFT = 8 << 20  # larger buffers gain nothing
Buffer = npt.NDArray[np.uint8]


class Stopped(Exception):
    """Another thread failed; this one does no more."""


@dataclass(slots=True)
class Counts:
    """Bytes moved so far, and by which kind of copy."""

    read: int = 0
    written: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Where things are: path and first byte of each source and each target."""

    source_paths: Sequence[Path]
    source_offsets: Sequence[int]
    target_paths: Sequence[Path]
    target_offsets: Sequence[int]


class Mover:
    """The buffers of one thread."""

    def __init__(
        self,
        plan: Plan,
        places: Places,
        files: Files,
        budget: int,
        advance: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None:
        self.plan, self.places, self.files = plan, places, files
        self.advance, self.stop = advance, stop
        self.hard, self.soft = budget, min(SOFT, budget)
        self.counts = Counts()
        self._arena: Buffer = np.empty(0, np.uint8)
        self._used = 0
        self._read_sizes, self._write_sizes = plan.read_sizes.tolist(), plan.write_sizes.tolist()

    def batch(self, number: int) -> Iterator[int]:
        """Makes the units of a batch; gives the number of each before its turn, for messages.

        Raises:
            OSError: reading or writing failed.
        """
        first, last = (int(self.plan.batches[number + after]) for after in (0, 1))
        bounds = self.plan.units[first : last + 1].tolist()
        rows = items(self.plan.copies, bounds[0], bounds[-1])
        for unit, start, stop in zip(range(first, last), bounds, bounds[1:], strict=False):
            yield unit
            self.unit(rows[start - bounds[0] : stop - bounds[0]], direct=bool(self.plan.direct[unit]))

    def unit(self, rows: Sequence[Item], *, direct: bool) -> None:
        """Makes all copies of a unit."""
        if direct:
            for item in rows:
                for read, write, count in runs(item.source, item.target):
                    self._direct(item, read, write, count)
            return
        decoded = any(self.plan.sources[item.source.tensor].decoder is not None for item in rows)
        for tile in tiles(rows, self.cost, soft=self.soft, hard=self.hard, row=self._row, gather=decoded):
            if self.stop():
                raise Stopped
            self._tile(tile)

    def name(self, number: int) -> str:
        """Name of a target that a unit writes to, for messages."""
        row = int(self.plan.units[number])
        return self.plan.targets[int(self.plan.copies.target[row])].name

    def cost(self, rows: Sequence[Item], alone: bool) -> int:
        """Bytes of memory that a tile needs."""
        buffers, decoded = self._needs(rows, alone)
        return buffers + decoded

    def _needs(self, rows: Sequence[Item], alone: bool) -> tuple[int, int]:
        """Bytes of buffers, and of what decoders take."""
        buffers = decoded = 0
        for span in spans([item.source for item in rows]):
            decoder = self.plan.sources[span.tensor].decoder
            if decoder is not None:
                row = self._row(span.tensor)
                decoded += decoder.row_bytes * (-(-span.stop // row) - span.start // row)
            else:
                used = min(span.size, sum(rows[number].volume for number in span.members))
                size = self._read_sizes[span.tensor]
                buffers += ALIGNMENT + (span.size if 2 * used >= span.size else used) * size
        for span in spans([item.target for item in rows]):
            volume = sum(rows[number].volume for number in span.members)
            taken = (span.size if alone else min(span.size, volume)) * self._write_sizes[span.tensor]
            buffers += taken + ALIGNMENT * len(span.members)
        return buffers, decoded

    def _row(self, source: int) -> int:
        tensor = self.plan.sources[source]
        return 1 if tensor.decoder is None else max(1, *tensor.stored.arrangement.shape[-1:])

    # Ranges of plain bytes

    def _direct(self, item: Item, read: int, write: int, count: int) -> None:
        source, target = item.source.tensor, item.target.tensor
        size = self._read_sizes[source]
        read_at = self.places.source_offsets[source] + read * size
        write_at = self.places.target_offsets[target] + write * size
        left = count * size
        with (
            self.files.use(self.places.source_paths[source]) as reader,
            self.files.use(self.places.target_paths[target], writing=True) as writer,
        ):
            while left:
                if self.stop():
                    raise Stopped
                done = kernel_copy(reader, writer, min(left, KERNEL_CHUNK), read_at, write_at)
                kind = "copy_file_range"
                if not done:
                    kind = "contiguous"
                    self._reserve(min(left, self.soft))
                    buffer = self._take(min(left, self.soft)).data
                    done = len(buffer)
                    read_into(reader, buffer, read_at)
                    write_all(writer, buffer, write_at)
                self._count(kind, done, done)
                read_at, write_at, left = read_at + done, write_at + done, left - done

    # Everything else

    def _tile(self, tile: Tile) -> None:
        self._reserve(self._needs(tile.items, tile.alone)[0])
        pieces = self._read([item.source for item in tile.items])
        for span in spans([item.target for item in tile.items]):
            members = [(tile.items[number], pieces[number]) for number in span.members]
            self._write(span, members, tile.alone)

    def _read(self, sides: Sequence[Side]) -> list[npt.NDArray[Any]]:
        """The elements of each side, as a view of a buffer or of what a decoder gave."""
        result: list[Any] = [None] * len(sides)
        for span in spans(sides):
            size = self._read_sizes[span.tensor]
            decoder = self.plan.sources[span.tensor].decoder
            members = [(number, sides[number]) for number in span.members]
            used = min(span.size, sum(side.volume for _, side in members))
            if decoder is not None:
                row = self._row(span.tensor)
                first, last = span.start // row, -(-span.stop // row)
                rows = np.ascontiguousarray(decoder.rows(first, last, self._bytes)).reshape(-1).view(np.uint8)
                if rows.size != (last - first) * row * size:
                    raise UserError(f"decoder gave {rows.size} bytes for {last - first} rows of {row} elements")
                self._count("decoded", 0, 0)
                for number, side in members:
                    result[number] = view(rows, size, side.at - first * row, side.extent, side.steps)
            elif 2 * used >= span.size:
                buffer = self._take(span.size * size)
                self._fill(span.tensor, buffer, span.start)
                for number, side in members:
                    result[number] = view(buffer, size, side.at - span.start, side.extent, side.steps)
            else:
                seen: dict[Side, npt.NDArray[Any]] = {}
                for number, side in members:
                    if side not in seen:
                        seen[side] = self._packed(side)
                    result[number] = seen[side]
        return result

    def _packed(self, side: Side) -> npt.NDArray[Any]:
        """Reads only the elements of a side, run by run, into a buffer without gaps."""
        size = self._read_sizes[side.tensor]
        buffer = self._take(side.volume * size)
        order = sorted(range(len(side.extent)), key=lambda axis: -side.steps[axis])
        base, rest = self.places.source_offsets[side.tensor], buffer.data
        with self.files.use(self.places.source_paths[side.tensor]) as fd:
            for start, count in stretches(side, order):
                read_into(fd, rest[: count * size], base + start * size)
                rest = rest[count * size :]
        self.counts.read += len(buffer)
        packed = buffer.view(WORDS[size]).reshape([side.extent[axis] for axis in order])
        return packed.transpose(np.argsort(order)) if order else packed

    def _write(self, span: Span, members: list[tuple[Item, npt.NDArray[Any]]], alone: bool) -> None:
        size = self._write_sizes[span.tensor]
        volume = sum(item.volume for item, _ in members)
        gaps = volume < span.size
        kind = "strided"
        if not gaps or alone:
            buffer = self._take(span.size * size)
            if gaps:
                buffer[:] = 0
            for item, values in members:
                side = item.target
                kind = self._put(view(buffer, size, side.at - span.start, side.extent, side.steps), values, item)
            self._flush(span.tensor, buffer, span.start)
            self._count(kind, 0, volume * size)
            return
        for item, values in members:
            side = item.target
            buffer = self._take(side.volume * size)
            kind = self._put(buffer.view(WORDS[size]).reshape(side.extent), values, item)
            base, rest = self.places.target_offsets[side.tensor], buffer.data
            with self.files.use(self.places.target_paths[side.tensor], writing=True) as fd:
                for start, count in stretches(side, range(len(side.extent))):
                    write_all(fd, rest[: count * size], base + start * size)
                    rest = rest[count * size :]
            self._count(kind, 0, buffer.size)

    def _put(self, target: npt.NDArray[Any], values: npt.NDArray[Any], item: Item) -> str:
        before = self.plan.sources[item.source.tensor].stored.dtype
        after = self.plan.targets[item.target.tensor].dtype
        if before == after:
            move(target, values)
            near = item.source.steps[-1:] == (1,) or not item.source.steps
            return "strided" if near else "transposed"
        numbers = values.view(FLOATS[before].storage)
        move(target.view(FLOATS[after].storage), numbers, lambda part: cast(part, before, after))
        return "cast"

    # Bytes

    def _reserve(self, nbytes: int) -> None:
        """Makes the thread's buffer large enough for what will be taken of it."""
        self._used = 0
        if nbytes > len(self._arena):
            self._arena = np.empty(0, np.uint8)  # first give back, then take
            self._arena = np.empty(nbytes, np.uint8)

    def _take(self, nbytes: int) -> Buffer:
        """A part of the thread's buffer; it holds until the next tile."""
        start = self._used
        self._used = start + -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self._arena[start : start + nbytes]

    def _fill(self, source: int, buffer: Buffer, element: int) -> None:
        at = self.places.source_offsets[source] + element * self._read_sizes[source]
        with self.files.use(self.places.source_paths[source]) as fd:
            read_into(fd, buffer.data, at)
        self.counts.read += len(buffer)

    def _bytes(self, path: Path, offset: int, count: int) -> memoryview:
        buffer = memoryview(bytearray(count))
        with self.files.use(path) as fd:
            read_into(fd, buffer, offset)
        self.counts.read += count
        return buffer

    def _flush(self, target: int, buffer: Buffer, element: int) -> None:
        at = self.places.target_offsets[target] + element * self._write_sizes[target]
        with self.files.use(self.places.target_paths[target], writing=True) as fd:
            write_all(fd, buffer.data, at)

    def _count(self, kind: str, read: int, written: int) -> None:
        self.counts.read += read
        self.counts.written += written
        self.counts.kinds[kind] = self.counts.kinds.get(kind, 0) + 1
        self.advance(written)
