"""How far a tensor may be off, per stage, and how measured rounding widens it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migrate.captures.compare import Difference


@dataclass(frozen=True)
class Tolerances:
    """Largest accepted differences, fp32. Measured on every family, 2 to 24 layers, width 42 to 128, CPU.

    Models with sharp attention round worse (measured 3e-5 with 16 layers of width 512 and scores in the hundreds).
    Where a tensor exceeds its bound, PyTorch runs again in fp64, and the bound becomes `noise` times the distance
    between PyTorch's own two results if that is larger; never more than `most` times the bound here.

    `activations` and `gradients` bound the norm of a tensor's difference relative to the tensor's norm. A single wrong
    element hides in a large norm, so the largest difference is bounded too: relative to the tensor's root mean square.
    """

    activations: float = 1e-5
    """Measured at most 2.8e-6 (docs/parity.md has each family); planted faults give 1e-4 and more."""
    loss: float = 2e-6
    """Measured at most 4e-7: both sides add about 80 fp32 terms of size 6 in another order."""
    gradients: float = 1e-4
    """Measured at most 7.5e-6; small gradients of the first layers carry the rounding of all later ones."""
    updates: float = 1e-4
    """Of what a parameter changed by in one step. Measured at most 4.7e-5: the change of a norm's weight is 4e-4 beside
    a weight above 1, whose last digit is 1.2e-7, so that one of 48 elements that is rounded the other way makes as
    much (a DeepSeek-V3; nearly all models stay below 1e-5). Planted faults give 4e-4 and more."""
    element: float = 100.0
    """Bound of a single element, in units of the norm's bound. Measured at most 35 times a tensor's own figure."""
    noise: float = 4.0
    """Two fp32 results lie up to twice as far apart as one of them from the truth, times two for luck of the order."""
    most: float = 100.0
    rounding: float = 1e-6
    """Part of a stage's largest gradient below which a difference may be rounding: some gradients are zero but for it
    (the bias of the keys moves all scores of a softmax alike). It is taken for that only where PyTorch's own fp32
    result is off by `nothing_but` of itself, and then the bound is `noise` times that, without `most`."""
    nothing_but: float = 0.1
    all_of_it: float = 0.9
    """Where PyTorch's own fp32 result is off by this part of itself, it says nothing, and a difference may be rounding
    whatever other gradients are like. (The one bias of scores of choices: 4e-8 and 1e-8, others at most 1e-2.)"""


@dataclass(frozen=True)
class Limit:
    """What one tensor may be off by."""

    relative: float
    element: float
    own: float | None = None
    """Relative rounding of the reference, where it was measured."""


def limits_of(stage: str, results: Sequence[Difference], tolerances: Tolerances) -> list[Limit]:
    """The plain bound of each result of a stage."""
    relative = {
        "W": 0.0, "F": tolerances.activations, "L": tolerances.loss, "G": tolerances.gradients, "U": tolerances.updates,
    }[stage]  # fmt: skip
    return [Limit(relative, relative * tolerances.element)] * len(results)


def raised(limit: Limit, own: Difference, tolerances: Tolerances) -> Limit:
    """A limit, widened where PyTorch's own rounding of the tensor is worse than it assumes."""
    if own.problem is not None:
        return limit

    def widen(bound: float, rounding: float) -> float:
        return max(bound, min(tolerances.noise * rounding, tolerances.most * bound))

    return Limit(widen(limit.relative, own.relative), widen(limit.element, own.element), own.relative)


def forgiven(
    limits: Sequence[Limit], results: Sequence[Difference], largest: float, tolerances: Tolerances
) -> list[Limit]:
    """Limits of gradients, widened where the reference's own result is nothing but rounding.

    Args:
        limits: after `raised`.
        results: what they are for.
        largest: magnitude of the largest element of any gradient.
        tolerances: see `Tolerances.rounding`.
    """
    found = []
    for limit, result in zip(limits, results, strict=True):
        apart = abs(result.reference - result.candidate)
        needed = tolerances.nothing_but if apart <= tolerances.rounding * largest else tolerances.all_of_it
        if limit.own is not None and limit.own >= needed:
            bound = tolerances.noise * limit.own
            limit = Limit(bound, bound * tolerances.element, limit.own)
        found.append(limit)
    return found
