"""Puts the captures of all ranks together into one of the whole model, as one process would have written it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mappings.arrangement import Arrangement, Placement
from mappings.cutting import meetings, view
from mappings.holdings import Holdings
from migrate.captures.store import Capture, CaptureWriter, first_line
from migrate.parity.layouts.rank import POSITIONS
from migrate.parity.layouts.request import Request
from migrate.parity.modules import memory_spelling
from migrate.parity.plan import Plan


@dataclass(frozen=True)
class Disagreement:
    """Two ranks that hold the same have different values."""

    stage: str
    name: str
    rank: int
    """That differs from a rank before it."""


def gather(plan: Plan, request: Request, ranks: Sequence[Capture], out: Path) -> tuple[Capture, list[Disagreement]]:
    """The capture of the whole model, and where ranks disagree; of those the first one's values are taken.

    A tensor of which some elements are on no rank is left out, so that the comparison misses it.

    Args:
        plan: of the comparison.
        request: the layout.
        ranks: captures in the order of the ranks.
        out: empty; takes the new capture.
    """
    writer = CaptureWriter(out, ranks[0].versions, _describe)
    disagreements: list[Disagreement] = []
    held = [_held(plan, request, rank) for rank in range(len(ranks))]
    for stage in plan.job.stages:
        problem = next((f"rank {n}: {why}" for n, one in enumerate(ranks) if (why := _missing(one, stage))), None)
        with writer.stage(stage) as tensors:
            if problem is not None:
                raise _AbsentError(problem)
            pieces = _Pieces(stage, ranks, disagreements)
            if stage == "F":
                shape = plan.batch["input_ids"].shape
                for name in plan.names(stage):
                    if (output := pieces.output(name, shape)) is not None:
                        tensors[name] = output
                continue
            for name in plan.names(stage) or ["loss", "valid_labels"]:
                parameter = name.split(" in step ")[0]
                arrangements = [one.get(parameter) for one in held]
                whole = pieces.tensor(name, arrangements) if any(arrangements) else pieces.same(name)
                if whole is not None:
                    tensors[name] = whole
    return Capture.read(out), disagreements


class _AbsentError(Exception):
    """A rank has no capture of a stage."""


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, _AbsentError) else first_line(error)


def _missing(capture: Capture, stage: str) -> str:
    return "" if stage in capture.stages else capture.errors.get(stage, "the process ended before this stage")


def _held(plan: Plan, request: Request, rank: int) -> Mapping[str, tuple[Arrangement, Arrangement]]:
    """By parameter, what a rank holds and the whole of it."""
    spelling = memory_spelling(plan.family)
    holdings = Holdings(plan.family, plan.config, replace(request.layout, zero=0), rank, spelling, plan.optional)
    return {name: (held.arrangement, held.whole) for name, held in holdings.tensors.items()}


class _Pieces:
    """Tensors of one stage on all ranks."""

    def __init__(self, stage: str, ranks: Sequence[Capture], disagreements: list[Disagreement]) -> None:
        self.stage, self.ranks, self.disagreements = stage, ranks, disagreements

    def disagree(self, name: str, rank: int) -> None:
        """Notes the first rank that has other values."""
        if all((one.stage, one.name) != (self.stage, name) for one in self.disagreements):
            self.disagreements.append(Disagreement(self.stage, name, rank))

    def same(self, name: str) -> np.ndarray | None:
        """A number that all ranks have."""
        found = None
        for rank, values in self.of(name):
            if found is not None and _differs(found, values):
                self.disagree(name, rank)
            found = values if found is None else found
        return found

    def tensor(self, name: str, arrangements: Sequence[tuple[Arrangement, Arrangement] | None]) -> np.ndarray | None:
        """A parameter, its gradient or its change, from the slices of the ranks."""
        whole = next(one[1] for one in arrangements if one is not None)
        target: np.ndarray = np.zeros(whole.shape, np.float32)
        filled: set[Placement] = set()
        for rank, values in self.of(name):
            pair = arrangements[rank]
            if pair is None or values.shape != pair[0].shape:
                return None
            for to, since in meetings(whole, pair[0]):
                place, elements = view(target, to), view(np.ascontiguousarray(values), since)
                if to in filled and _differs(place, elements):
                    self.disagree(name, rank)
                elif to not in filled:
                    place[...] = elements
                    filled.add(to)
        count = sum(int(np.prod(box.extent)) for box in filled)
        return target if count == whole.size else None

    def output(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """What a module returned for the whole batch.

        Ranks have some rows (dp) and some positions (cp) of it; with sequence parallelism, consecutive parts of those.
        """
        target: np.ndarray | None = None
        filled = np.zeros(shape, bool)
        for rank, values in self.of(name):
            with self.ranks[rank].reader(POSITIONS) as read:
                rows, positions = read("rows"), read("positions")
            if values.shape[0] == 1 < len(rows):
                values = np.broadcast_to(values, (len(rows), *values.shape[1:]))
            positions = self.part(rank, positions, values.shape[1])
            target = np.zeros((*shape, *values.shape[2:]), values.dtype) if target is None else target
            index = np.ix_(rows, positions)
            if target.shape[2:] != values.shape[2:] or (len(rows), len(positions)) != values.shape[:2]:
                return None
            if not filled[index].any():
                target[index], filled[index] = values, True
            elif not filled[index].all() or _differs(target[index], values):
                self.disagree(name, rank)
        return target if filled.all() else None

    def part(self, rank: int, positions: np.ndarray, length: int) -> np.ndarray:
        """The positions of a rank's output, which may be shorter than its part of the sequence."""
        parts = len(positions) // length if length else 1
        if parts <= 1:
            return positions
        # Tensor-parallel ranks, among which the sequence is divided then, follow each other.
        return positions[rank % parts * length :][:length]

    def of(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Each rank that has the tensor, and its values."""
        for rank, capture in enumerate(self.ranks):
            if name in capture.names(self.stage):
                with capture.reader(self.stage) as read:
                    yield rank, read(name)


def _differs(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape != other.shape or np.ascontiguousarray(one).tobytes() != np.ascontiguousarray(other).tobytes()


def names_of(disagreements: Collection[Disagreement], stage: str) -> list[str]:
    """Tensors of a stage about which ranks disagree."""
    return [one.name for one in disagreements if one.stage == stage]
