"""Compares rungs with the first one and with the one before, within the noise of the first."""

from __future__ import annotations

import math

from migrate.ladder.causes import Deviation
from migrate.ladder.measured import FIELDS, Measured
from migrate.report import band

FLOORS = {"fp32": 2e-6, "bf16": 1e-2, "fp16": 2e-3}
"""Least relative tolerance by format of the computation: some roundings of a sum (bf16 has 8 bits, fp16 11)."""
FACTOR = 10.0
"""A rung may be this many times as far away as the first rung's repetition. That is one sample of the noise, and a
layout changes the order of more sums than another micro-batch does."""


def first_deviation(
    reference: Measured, repetition: Measured | None, candidate: Measured, floor: float
) -> Deviation | None:
    """The first step at which loss or gradient norm leaves the band; None where they stay in it.

    Args:
        reference: what is right.
        repetition: the first rung again; None where there is none, then the floor grows tenfold over the steps.
        candidate: what is judged.
        floor: least relative tolerance.
    """
    steps = [step for step in reference.steps if step in candidate.curves["loss"]]
    limits = {field: allowed(reference, repetition, field, steps, floor) for field in FIELDS}
    for index, step in enumerate(steps):
        for field in FIELDS:
            expected, found = reference.curves[field][step], candidate.curves[field][step]
            deviation = Deviation(field, step, expected, found, limits[field][index])
            if not deviation.relative <= deviation.limit:
                return deviation
    return None


def allowed(
    reference: Measured, repetition: Measured | None, field: str, steps: list[int], floor: float
) -> list[float]:
    """Relative tolerance of a field at each step."""
    values = reference.curves[field]
    usable = [step for step in steps if math.isfinite(values[step]) and values[step]]
    if repetition is None or len(usable) < len(steps):
        return [floor * 10 ** (index / max(len(steps) - 1, 1)) for index in range(len(steps))]
    again = repetition.curves[field]
    noise = {step: again.get(step, values[step]) for step in steps}
    return band.limits(values, [noise], steps, floor, FACTOR)


def largest(reference: Measured, candidate: Measured, field: str) -> float:
    """Largest relative difference of a field."""
    steps = [step for step in reference.steps if step in candidate.curves[field]]
    pairs = [(reference.curves[field][step], candidate.curves[field][step]) for step in steps]
    return max((Deviation(field, 0, a, b, 0.0).relative for a, b in pairs), default=math.inf)
