"""Padding of stored tensors, which a conversion drops: it should be zeros, and what is not is said.

Padding is what no parameter claims: rows behind the vocabulary, and those that ZeRO adds to divide a tensor. Only these
elements are read, some kilobytes at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mappings.arrangement import Arrangement, Piece
from mappings.errors import UserError
from mappings.formats.safetensors import DTYPE_BITS
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.containers.states import split_state
from migrate.weights.engine.files import Files, read_into
from migrate.weights.tensors import Checkpoint, SourceTensor

CHUNK = 1 << 20  # bytes

Ints = npt.NDArray[np.int64]


def not_zero(checkpoint: Checkpoint, *, states: bool = True) -> list[Finding]:
    """Findings for tensors whose padding holds something, with how much and where.

    Args:
        checkpoint: to look at.
        states: whether optimizer states are looked at, too.

    Raises:
        UserError: a file cannot be read.
    """
    findings = []
    files = Files()
    try:
        for tensor in checkpoint.tensors:
            if not _has_padding(tensor) or (not states and split_state(tensor.stored.name)[0]):
                continue
            try:
                found = _looked_at(tensor, files)
            except OSError as error:
                name = tensor.stored.name
                raise UserError(f"tensor {name!r}: cannot be read: {error.strerror or error}") from error
            if found.count:
                index = [int(i) for i in np.unravel_index(found.first, tensor.stored.arrangement.shape)]
                message = f"{found.count} of {found.of} elements of padding are not zero, the first at {index}"
                findings.append(finding("W026", message, file=tensor.stored.file, tensor=tensor.stored.name))
    finally:
        files.close()
    return findings


def gaps(arrangement: Arrangement) -> Iterator[tuple[int, int]]:
    """(first element, elements) of everything that no piece covers, in order; neighbours may follow each other.

    Pieces lie apart, as the planner has proved or will prove.
    """
    if not arrangement.padding:
        return
    if len(arrangement.shape) < 2:
        yield from _between_runs(arrangement)
        return
    width = math.prod(arrangement.shape[1:])
    held = _held(arrangement)
    edges = np.flatnonzero(np.diff(held, prepend=-1, append=-1)).tolist()
    for first, last in pairwise(edges):
        if held[first] == 0:
            yield first * width, (last - first) * width
        elif held[first] < width:
            for row in range(first, last):
                one = arrangement.slice(0, row, row + 1).reshape(*arrangement.shape[1:])
                yield from ((row * width + start, count) for start, count in gaps(one))


@dataclass
class _Found:
    count: int = 0
    of: int = 0
    first: int = -1


def _has_padding(tensor: SourceTensor) -> bool:
    return tensor.decoder is None and not tensor.is_view and tensor.stored.arrangement.padding > 0


def _looked_at(tensor: SourceTensor, files: Files) -> _Found:
    size = DTYPE_BITS[tensor.stored.dtype] // 8
    step = CHUNK // size
    found = _Found()
    with files.use(tensor.path) as fd:
        for start, count in gaps(tensor.stored.arrangement):
            for at in range(start, start + count, step):
                buffer = bytearray(size * min(step, start + count - at))
                read_into(fd, memoryview(buffer), tensor.offset + at * size)
                found.of += len(buffer) // size
                if any(buffer):
                    places = np.flatnonzero(np.frombuffer(buffer, np.uint8).reshape(-1, size).any(axis=1))
                    found.first = at + int(places[0]) if found.first < 0 else found.first
                    found.count += len(places)
    return found


def _held(arrangement: Arrangement) -> Ints:
    """[index of axis 0]: elements that pieces cover there."""
    held: Ints = np.zeros(arrangement.shape[0], np.int64)
    for piece in arrangement.pieces:
        rows = _places(piece, [step if axis == 0 else 0 for axis, step in zip(piece.axes, piece.steps, strict=True)])
        each = math.prod(n for axis, n in zip(piece.axes, piece.extent, strict=True) if axis != 0)
        held[piece.at[0] + rows] += each
    return held


def _places(piece: Piece, steps: list[int]) -> Ints:
    """Sums of index times step over the axes of a piece that have a step, ascending by axis."""
    rows: Ints = np.zeros(1, np.int64)
    for step, count in zip(steps, piece.extent, strict=True):
        if step or not count:
            rows = (rows[:, None] + np.arange(count) * step).reshape(-1)
    return rows


def _between_runs(arrangement: Arrangement) -> Iterator[tuple[int, int]]:
    """What lies between the runs of pieces in a tensor of at most one axis."""
    spans: list[tuple[Ints, Ints]] = []
    for piece in arrangement.pieces:
        if 0 in piece.extent:
            continue
        axes = sorted((step, n) for step, n in zip(piece.steps, piece.extent, strict=True) if n != 1)
        run = 1
        while axes and axes[0][0] == run:
            run *= axes.pop(0)[1]
        starts = np.full(1, piece.at[0] if piece.at else 0, np.int64)
        for step, n in axes:
            starts = (starts[:, None] + np.arange(n) * step).reshape(-1)
        spans.append((starts, np.full(len(starts), run, np.int64)))
    begin = np.concatenate([starts for starts, _ in spans]) if spans else np.empty(0, np.int64)
    count = np.concatenate([runs for _, runs in spans]) if spans else np.empty(0, np.int64)
    order = np.argsort(begin, kind="stable")
    behind = np.concatenate([[0], (begin + count)[order]])
    ahead = np.concatenate([begin[order], [arrangement.size]])
    for place in np.flatnonzero(ahead > behind).tolist():
        yield int(behind[place]), int(ahead[place] - behind[place])
