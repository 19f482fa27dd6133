"""A plan of a conversion: which elements of which source become which elements of which target, made from headers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from mappings.formats.floats import FLOATS
from mappings.formats.safetensors import DTYPE_BITS
from migrate.report import Finding
from migrate.weights.engine.boxes import Ints, boxes_of, meetings
from migrate.weights.engine.copies import Copies, copies_between, split_long
from migrate.weights.engine.forms import ranges
from migrate.weights.engine.proof import PlanError, available, covered, tiled
from migrate.weights.engine.replicas import choose
from migrate.weights.engine.units import unit_numbers
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored, TargetFile

DIRECT_RUN = 64 << 10  # bytes side by side from which a run is copied by itself, without a buffer
SHARE = 64 << 20  # bytes of one run that one thread copies at a time
MOST = 1 << 58  # elements of all targets; keeps byte offsets within 64 bits
BATCH = 8 << 20  # bytes after which a new batch begins


@dataclass(frozen=True)
class Plan:
    """All that will be written, and where it comes from."""

    sources: tuple[SourceTensor, ...]
    files: tuple[TargetFile, ...]
    copies: Copies
    """In the order in which they are made: unit by unit, the units along the target files."""
    units: Ints
    """First row of each unit, and the number of rows behind the last one."""
    direct: np.ndarray
    """[unit]: whether its copies are long runs of plain bytes, each made by itself."""
    batches: Ints
    """First unit of each batch, and the number of units behind the last one."""
    comparisons: Copies
    """What must be equal in two sources."""
    findings: tuple[Finding, ...]
    """Errors mean that the targets cannot be made from these sources."""

    @cached_property
    def targets(self) -> tuple[Stored, ...]:
        """All ranges that are written, file after file."""
        return tuple(part for file in self.files for part in ranges(file))

    @cached_property
    def file_of(self) -> Ints:
        """[target]: number of its file."""
        return np.repeat(np.arange(len(self.files)), [len(ranges(file)) for file in self.files])

    @cached_property
    def read_sizes(self) -> Ints:
        """[source]: bytes of an element."""
        return _itemsizes([source.stored for source in self.sources])

    @cached_property
    def write_sizes(self) -> Ints:
        """[target]: bytes of an element."""
        return _itemsizes(self.targets)

    @cached_property
    def bytes_minimum(self) -> int:
        """Bytes that cannot be avoided: every target without its padding."""
        return int((self.copies.volume * self.write_sizes[self.copies.target]).sum())

    @cached_property
    def bytes_read(self) -> int:
        """Bytes of the sources that are read, each once for a unit; what decoders read in proportion."""
        copies = self.copies
        if not len(copies):
            return 0
        unit = np.repeat(np.arange(len(self.units) - 1), np.diff(self.units))
        order = np.argsort(np.where(copies.extent > 1, copies.read_steps, -1), axis=1, kind="stable")
        sorted_axes = [np.take_along_axis(table, order, axis=1) for table in (copies.extent, copies.read_steps)]
        same = np.column_stack([unit, copies.source, copies.read, *sorted_axes])
        once = np.ones(len(copies), bool)
        once[np.flatnonzero(~np.repeat(self.direct, np.diff(self.units)))] = False
        once[np.unique(same, axis=0, return_index=True)[1]] = True
        sizes = [
            size
            if source.decoder is None
            else sum(p.nbytes for p in source.decoder.parts) / max(1, source.stored.arrangement.size)
            for size, source in zip(self.read_sizes.tolist(), self.sources, strict=True)
        ]
        return round(float((copies.volume * np.array(sizes)[copies.source])[once].sum()))

    @property
    def bytes_padding(self) -> int:
        """Zeros in the targets."""
        return sum(t.arrangement.padding * DTYPE_BITS[t.dtype] // 8 for t in self.targets)

    @cached_property
    def lossy(self) -> tuple[str, ...]:
        """What changes values, one line per kind."""
        kinds = {source.decoder.note for source in self.sources if source.decoder is not None}
        pairs = np.unique(np.column_stack([self.copies.source, self.copies.target]), axis=0)
        for source, target in pairs.tolist():
            before, after = self.sources[source].stored.dtype, self.targets[target].dtype
            if before != after and not (FLOATS[before].fits(FLOATS[after])):
                kinds.add(f"{before} rounded to {after}")
        return tuple(sorted(kinds))

    @cached_property
    def kinds(self) -> dict[str, int]:
        """Number of copies by what they take: whole ranges, strides, transposes, casts, decoding."""
        copies = self.copies
        if not len(copies):
            return {}
        before = np.array([source.stored.dtype for source in self.sources])[copies.source]
        after = np.array([target.dtype for target in self.targets])[copies.target]
        decoded = np.array([source.decoder is not None for source in self.sources])[copies.source]
        direct = np.repeat(self.direct, np.diff(self.units))
        turned = copies.read_steps[:, 0] > 1
        names = np.array(["decoded", "cast", "ranges", "transposed", "strided"])
        found = names[np.select([decoded, before != after, direct, turned], [0, 1, 2, 3], 4)]
        return {str(name): int(count) for name, count in zip(*np.unique(found, return_counts=True), strict=True)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that determines the bytes written."""
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(repr((str(source.path), source.offset, source.stored.dtype)).encode())
            if source.decoder is not None:
                parts = [(str(part.path), part.offset, part.dtype, part.shape) for part in source.decoder.parts]
                digest.update(repr((source.decoder.note, parts)).encode())
        for file in self.files:
            digest.update(repr((file.name, file.form, sorted(file.metadata.items()))).encode())
            for tensor in file.tensors:
                digest.update(repr((tensor.name, tensor.dtype, tensor.arrangement.shape)).encode())
        tables = [getattr(self.copies, name) for name in self.copies.__slots__]
        for table in (*tables, self.units, self.batches):
            digest.update(np.ascontiguousarray(table).data)
        return digest.hexdigest()


def plan(
    sources: Checkpoint,
    targets: Sequence[TargetFile],
    *,
    dropped: Collection[str] = (),
    compare_dropped: bool = False,
) -> Plan:
    """Plans and proves a conversion.

    Proved is: pieces of a tensor do not overlap, each target is made completely from pieces and padding, every element
    of every source tensor belongs to an atom, and all atoms are in the targets. What the sources lack, and what the
    targets would drop, are findings.

    Args:
        sources: what exists.
        targets: what shall exist.
        dropped: atoms that the targets need not hold.
        compare_dropped: whether copies of those have to be equal, too; it costs reading them.

    Raises:
        PlanError: arrangements that contradict themselves, or a change of dtype that nobody can make.
    """
    dropped = frozenset(dropped)
    files, flat = tuple(targets), tuple(part for file in targets for part in ranges(file))
    stored = [source.stored for source in sources.tensors]
    if sum(tensor.arrangement.size for tensor in flat) > MOST:
        name = max(flat, key=lambda tensor: tensor.arrangement.size).name
        raise PlanError(f"tensor {name!r}: the output would have more elements than any disk; check the padding")
    axes = (len(piece.start) for tensor in chain(stored, flat) for piece in tensor.arrangement.pieces)
    rank = max(axes, default=0) or 1
    numbers: dict[str, int] = {name: number for number, name in enumerate(sources.atoms)}
    have = boxes_of([tensor.arrangement for tensor in stored], numbers, rank)
    want = boxes_of([tensor.arrangement for tensor in flat], numbers, rank)
    names = list(numbers)
    tiled(stored, have, read=True)
    tiled(flat, want)
    choice = choose(have)
    left, right, low, high = meetings(choice.boxes, want)
    findings = available(want, right, (high - low).prod(axis=1), names, flat)
    findings += covered(want, sources.atoms, names, dropped)
    copies = copies_between(choice.boxes.within(left, low, high), want.within(right, low, high))
    del left, right, low, high
    kept, again = choice.kept, choice.copies
    if dropped and not compare_dropped:
        gone = np.isin(kept.atom, [numbers[name] for name in dropped if name in numbers])
        kept, again = kept.take(~gone), again.take(~gone)
    comparisons = copies_between(kept, again)
    return _arranged(sources.tensors, files, stored, flat, copies, comparisons, tuple(findings))


def _arranged(
    sources: tuple[SourceTensor, ...],
    files: tuple[TargetFile, ...],
    stored: Sequence[Stored],
    flat: tuple[Stored, ...],
    copies: Copies,
    comparisons: Copies,
    findings: tuple[Finding, ...],
) -> Plan:
    """Copies in units and batches."""
    read_size, write_size = _itemsizes(stored), _itemsizes(flat)
    # What decoders give is only had in whole rows: copies that share one belong together.
    rows = np.array([_row(source) for source in sources] or [1], np.int64)
    share = SHARE // np.maximum(read_size[copies.source], write_size[copies.target])
    row = rows[copies.source]
    copies = split_long(copies, np.maximum(share // row, 1) * row)
    row = rows[copies.source]
    begin, end = copies.read // row * row, -(-copies.read_stop // row) * row
    unit = unit_numbers(copies.source, begin, end, copies.target, copies.write, copies.write_stop)
    plain = _plain(sources, flat, copies)
    nbytes = copies.volume * write_size[copies.target]
    single = (copies.extent[:, 1:] == 1).all(axis=1) & (copies.runs == copies.extent[:, 0])
    long = plain & (single | (copies.runs * write_size[copies.target] >= DIRECT_RUN))
    # A unit of which every copy can be made by itself is taken apart again.
    assembled = np.zeros(int(unit.max(initial=-1)) + 1, bool)
    assembled[unit[~long]] = True
    alone = ~assembled[unit]
    unit = np.where(alone, len(assembled) + np.arange(len(unit)), unit)
    place = np.cumsum([0, *(tensor.arrangement.size for tensor in flat)])[copies.target] + copies.write
    least = np.full(len(assembled) + len(unit), np.iinfo(np.int64).max)
    np.minimum.at(least, unit, place)
    order = np.lexsort((place, unit, least[unit]))
    copies, unit, nbytes, alone = copies.take(order), unit[order], nbytes[order], alone[order]
    starts = np.flatnonzero(np.concatenate([[True], unit[1:] != unit[:-1]])) if len(unit) else np.empty(0, np.int64)
    units = np.append(starts, len(unit))
    behind = np.cumsum(nbytes)[units[1:] - 1] if len(starts) else np.empty(0, np.int64)
    number = (behind - 1) // BATCH
    first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]])) if len(starts) else starts
    return Plan(sources, files, copies, units, alone[starts], np.append(first, len(starts)), comparisons, findings)


def _row(source: SourceTensor) -> int:
    """Elements of which reading takes all or none."""
    return 1 if source.decoder is None else max(1, *source.stored.arrangement.shape[-1:])


def _plain(sources: Sequence[SourceTensor], flat: Sequence[Stored], copies: Copies) -> np.ndarray:
    """[copy]: whether bytes are moved as they are.

    Raises:
        PlanError: elements would have to change in a way that no cast does.
    """
    numbers: dict[str, int] = {}
    before = np.array([numbers.setdefault(s.stored.dtype, len(numbers)) for s in sources], np.int64)
    after = np.array([numbers.setdefault(t.dtype, len(numbers)) for t in flat], np.int64)
    decoded = np.array([s.decoder is not None for s in sources], bool)
    if not len(copies):
        return np.empty(0, bool)
    a, b = before[copies.source], after[copies.target]
    names = list(numbers)
    for row in np.flatnonzero(a != b)[np.unique(np.column_stack([a, b])[a != b], axis=0, return_index=True)[1]]:
        pair = names[a[row]], names[b[row]]
        if not set(pair) <= set(FLOATS):
            name = flat[int(copies.target[row])].name
            raise PlanError(f"tensor {name!r}: {pair[0]} cannot become {pair[1]}; keep its dtype")
    return (a == b) & ~decoded[copies.source]


def _itemsizes(tensors: Sequence[Stored]) -> Ints:
    sizes = []
    for tensor in tensors:
        size, rest = divmod(DTYPE_BITS[tensor.dtype], 8)
        if rest:
            raise PlanError(f"tensor {tensor.name!r}: {tensor.dtype} elements are no whole bytes; decode them first")
        sizes.append(size)
    return np.array(sizes, np.int64)
