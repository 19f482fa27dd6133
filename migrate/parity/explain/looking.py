"""One tensor of a stage on both sides, compared when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from migrate.captures.compare import Difference, compare
from migrate.captures.store import Capture
from migrate.parity.judgement import is_wrong
from migrate.parity.tolerances import Limit, Tolerances, forgiven, limits_of, raised


@dataclass(frozen=True)
class Look:
    """A comparison with its bound."""

    difference: Difference
    limit: Limit
    wrong: bool


NOT_RUN = Look(
    Difference("", 0, np.inf, np.inf, 0, (), np.nan, np.nan, "the candidate does not run it"), Limit(0.0, 0.0), True
)
"""What stands for the output of a module that the candidate leaves out."""


@dataclass
class Looking:
    """Compares tensors by name; reads nothing else.

    Attributes:
        seen: what was compared so far.
    """

    reference: Capture
    candidate: Capture
    stage: str
    mask: np.ndarray
    tolerances: Tolerances
    noise: Capture | None = None
    """The reference in fp64; widens bounds as in the stage whose bounds these are."""
    bounds: str = "F"
    """The stage whose bounds count: F, or G for gradients."""
    largest: float = 0.0
    """Of gradients: the magnitude of the largest element of any; see `forgiven`."""
    seen: dict[str, Look] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Tensors that both sides have, in the order of the reference."""
        if self.stage not in self.reference.stages or self.stage not in self.candidate.stages:
            return []
        there = set(self.candidate.names(self.stage))
        return [name for name in self.reference.names(self.stage) if name in there]

    def lacks(self, name: str) -> bool:
        """Whether the reference recorded it and the candidate did not."""
        return name in self.reference.names(self.stage) and name not in self.candidate.names(self.stage)

    def __call__(self, name: str) -> Look | None:
        """The comparison of one tensor; None where a side did not record it, or not in the reference's shape.

        What goes into a module may be laid out otherwise on the two sides (tokens of all rows in one axis); that is no
        difference of values.
        """
        if name in self.seen:
            return self.seen[name]
        sides = [_read(capture, self.stage, name) for capture in (self.reference, self.candidate)]
        left, right = sides
        if left is None or right is None or left.shape != right.shape:
            return None
        difference = compare(name, left, right, mask_of(left.shape, self.mask))
        (limit,) = limits_of(self.bounds, [difference], self.tolerances)
        wrong = is_wrong(self.bounds, difference, limit)
        exact = None if self.noise is None else _read(self.noise, self.stage, name)
        if wrong and exact is not None:
            own = compare(name, left.astype(np.float64), exact, mask_of(left.shape, self.mask))
            limit = raised(limit, own, self.tolerances)
            if self.bounds == "G":
                (limit,) = forgiven([limit], [difference], self.largest, self.tolerances)
            wrong = is_wrong(self.bounds, difference, limit)
        self.seen[name] = Look(difference, limit, wrong)
        return self.seen[name]


def _read(capture: Capture, stage: str, name: str) -> np.ndarray | None:
    if stage not in capture.stages or name not in capture.stages[stage]["names"]:
        return None
    with capture.reader(stage) as read:
        values: np.ndarray = read(name)
    return values


def mask_of(shape: tuple[int, ...], mask: np.ndarray) -> np.ndarray | None:
    """The part of a tensor that counts: its leading axes are those of the batch, or all positions in one axis.

    None, which means everything, for tensors that do not follow the batch.
    """
    if shape[: mask.ndim] == mask.shape:
        return mask
    return mask.reshape(-1) if shape[:1] == (mask.size,) else None


Looks = Mapping[str, Look]
