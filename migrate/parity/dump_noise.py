"""How far a script is from itself: a second dump of the reference, made in fp64 (or with other kernels)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mappings.errors import UserError
from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.judgement import Judgement
from migrate.parity.tolerances import Limit, Tolerances, forgiven, limits_of, raised

Read = Callable[[str], np.ndarray]
SAME = 1e-6
"""Weights of both dumps: what is left of fp64 in fp32."""


@dataclass(frozen=True)
class DumpNoise:
    """The second dump, which widens the bounds where the reference rounds worse than they assume."""

    reference: Capture
    again: Capture
    tolerances: Tolerances

    def check(self, stages: Sequence[str]) -> None:
        """Raises UserError unless the second dump holds the same tensors as the first, with the same weights.

        Args:
            stages: those to compare.
        """
        for stage in stages:
            if stage not in self.again.stages:
                raise UserError(f"--noise {self.again.out}: has no stage {stage}, so it is no second dump")
            if lacking := set(self.reference.names(stage)) ^ set(self.again.names(stage)):
                raise UserError(
                    f"--noise {self.again.out}: {stage} of {self.reference.out} has other tensors, "
                    f"e.g. {min(lacking)}; a second dump is made by the same script"
                )
        if "W" in stages:
            with self.reference.reader("W") as first, self.again.reader("W") as second:
                for name in self.reference.names("W"):
                    if not _apart(name, first, second).relative <= SAME:
                        raise UserError(f"--noise {self.again.out}: {name} has other values than {self.reference.out}")

    def limits(self, stage: str, results: Sequence[Difference], first: Read, second: Read) -> list[Limit]:
        """Bounds of a stage.

        Args:
            stage: one of F, L, G, U; weights have to be equal bit for bit.
            results: comparisons with the candidate, named as in the reference.
            first: reads a tensor of the reference, as it is compared.
            second: the same of the second dump.
        """
        limits = limits_of(stage, results, self.tolerances)
        if stage == "W":
            return limits
        own = [_apart(one.name, first, second) for one in results]
        limits = [raised(limit, rounding, self.tolerances) for limit, rounding in zip(limits, own, strict=True)]
        if stage == "G":
            largest = max(float(np.abs(first(one.name)).max(initial=0.0)) for one in results)
            return forgiven(limits, results, largest, self.tolerances)
        if stage == "U":
            loose = self._moved_by_rounding()
            pairs = zip(results, limits, strict=True)
            return [self._any_sign(limit) if one.name in loose else limit for one, limit in pairs]
        return limits

    def _moved_by_rounding(self) -> set[str]:
        """Parameters whose gradient is nothing but rounding: Adam makes full steps of it all the same."""
        if "G" not in self.reference.stages or "G" not in self.again.stages:
            return set()
        found = set()
        with self.reference.reader("G") as first, self.again.reader("G") as second:
            names = self.reference.names("G")
            magnitude = {name: float(np.abs(first(name)).max(initial=0.0)) for name in names}
            small = self.tolerances.rounding * max(magnitude.values())
            for name in (name for name in names if magnitude[name] <= small):
                if _apart(name, first, second).relative >= self.tolerances.nothing_but:
                    found.add(name)
        return found

    def _any_sign(self, limit: Limit) -> Limit:
        """Of a step whose direction is rounding: opposite steps are apart by twice their length."""
        return Limit(self.tolerances.noise, self.tolerances.noise * self.tolerances.element, limit.own)


def suspected_rounding(judgement: Judgement, tolerances: Tolerances) -> list[str]:
    """Gradients that differ, but are so small beside the largest one that both may be rounding.

    Args:
        judgement: of stage G, made without a second dump.
        tolerances: see `Tolerances.rounding`; what stands in a row is the worst element.
    """
    values = [(row, max(_size(row["reference"]), _size(row["candidate"]))) for row in judgement.rows]
    largest = max((value for _, value in values), default=0.0)
    return [row["name"] for row, value in values if row["differs"] and value <= tolerances.rounding * largest]


def _apart(name: str, first: Read, second: Read) -> Difference:
    """How far the second dump is from the first; scripts in fp64 and fp32 may be compared."""
    return compare(name, first(name).astype(np.float64), second(name).astype(np.float64))


def _size(value: float | str) -> float:
    return abs(value) if isinstance(value, float | int) else np.inf
