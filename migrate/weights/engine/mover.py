"""Makes one unit: reads what it needs once, scatters it into buffers laid out like the targets, writes those once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy.typing as npt

from mappings.formats.floats import FLOATS, cast
from migrate.weights.engine.arena import ALIGNMENT, Arena
from migrate.weights.engine.copies import items
from migrate.weights.engine.copy_item import Item, Span, spans
from migrate.weights.engine.files import Files, read_into, write_all
from migrate.weights.engine.plan import Plan
from migrate.weights.engine.reading import Places, Reader
from migrate.weights.engine.runs import kernel_copy, runs, stretches
from migrate.weights.engine.strided import WORDS, move, view
from migrate.weights.engine.tiles import Tile, tiles

KERNEL_CHUNK = 16 << 20  # bytes per copy_file_range call, so that progress moves
SOFT = 2 << 20  # what was read stays in the cache until it is written


class Stopped(Exception):
    """Another thread failed; this one does no more."""


class Mover:
    """One copying thread."""

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
        self.arena = Arena()
        self.reader = Reader(plan, places, files, self.arena, budget)
        self.bytes_read = self.bytes_written = 0
        self._sizes: list[int] = plan.write_sizes.tolist()

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
        for tile in tiles(rows, self.cost, soft=self.soft, hard=self.hard, row=self.reader.row, gather=decoded):
            if self.stop():
                raise Stopped
            self._tile(tile)

    def name(self, number: int) -> str:
        """Name of a target that a unit writes to, for messages."""
        row = int(self.plan.units[number])
        return self.plan.targets[int(self.plan.copies.target[row])].name

    def cost(self, rows: Sequence[Item], alone: bool) -> int:
        """Bytes of memory that a tile needs."""
        return sum(self._needs(rows, alone))

    def _needs(self, rows: Sequence[Item], alone: bool) -> tuple[int, int]:
        """Bytes of the arena, and of other memory that decoders take."""
        buffers, decoded = self.reader.needs([item.source for item in rows])
        for span in spans([item.target for item in rows]):
            volume = sum(rows[number].volume for number in span.members)
            taken = span.size if alone else min(span.size, volume)
            buffers += taken * self._sizes[span.tensor] + ALIGNMENT * len(span.members)
        return buffers, decoded

    # Ranges of plain bytes

    def _direct(self, item: Item, read: int, write: int, count: int) -> None:
        source, target = item.source.tensor, item.target.tensor
        size = self._sizes[target]
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
                if not done:
                    self.arena.reserve(min(left, self.soft))
                    buffer = self.arena.take(min(left, self.soft)).data
                    done = len(buffer)
                    read_into(reader, buffer, read_at)
                    write_all(writer, buffer, write_at)
                self.bytes_read += done
                self._count(done)
                read_at, write_at, left = read_at + done, write_at + done, left - done

    # Everything else

    def _tile(self, tile: Tile) -> None:
        self.arena.reserve(self._needs(tile.items, tile.alone)[0])
        pieces = self.reader.read([item.source for item in tile.items])
        for span in spans([item.target for item in tile.items]):
            members = [(tile.items[number], pieces[number]) for number in span.members]
            self._write(span, members, tile.alone)

    def _write(self, span: Span, members: list[tuple[Item, npt.NDArray[Any]]], alone: bool) -> None:
        size = self._sizes[span.tensor]
        volume = sum(item.volume for item, _ in members)
        gaps = volume < span.size
        base = self.places.target_offsets[span.tensor]
        with self.files.use(self.places.target_paths[span.tensor], writing=True) as fd:
            if not gaps or alone:
                buffer = self.arena.take(span.size * size)
                if gaps:
                    buffer[:] = 0
                for item, values in members:
                    side = item.target
                    self._put(view(buffer, size, side.at - span.start, side.extent, side.steps), values, item)
                write_all(fd, buffer.data, base + span.start * size)
            else:
                for item, values in members:
                    self._write_runs(fd, base, item, values)
        self._count(volume * size)

    def _write_runs(self, fd: int, base: int, item: Item, values: npt.NDArray[Any]) -> None:
        """Writes only the elements of one copy, for what lies between them belongs to others."""
        side, size = item.target, self._sizes[item.target.tensor]
        buffer = self.arena.take(side.volume * size)
        self._put(buffer.view(WORDS[size]).reshape(side.extent), values, item)
        rest = buffer.data
        for start, count in stretches(side, range(len(side.extent))):
            write_all(fd, rest[: count * size], base + start * size)
            rest = rest[count * size :]

    def _put(self, target: npt.NDArray[Any], values: npt.NDArray[Any], item: Item) -> None:
        before = self.plan.sources[item.source.tensor].stored.dtype
        after = self.plan.targets[item.target.tensor].dtype
        if before == after:
            move(target, values)
        else:
            numbers = values.view(FLOATS[before].storage)
            move(target.view(FLOATS[after].storage), numbers, lambda part: cast(part, before, after))

    def _count(self, written: int) -> None:
        self.bytes_written += written
        self.advance(written)
