"""How far two runs of one program come apart by rounding alone: the band that other differences are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FACTOR = 3.0
"""A candidate may be this many times as far from the reference as the reference's own repetitions are. The largest
distances of two repetitions differ by a factor of 1 (loss) and 3.2 (gradient norm) in 100 steps of a small Qwen2
(`python tests/curves/run.py`, docs/curves)."""


def limits(
    reference: Mapping[int, float],
    repetitions: Sequence[Mapping[int, float]],
    steps: Sequence[int],
    floor: float,
    factor: float = FACTOR,
) -> list[float]:
    """Relative tolerance at each step.

    Args:
        reference: value by step.
        repetitions: the same run with another order of sums (micro-batches dealt out otherwise, other threads), or the
            very same where it does not repeat itself.
        steps: ascending.
        floor: least tolerance.
        factor: see `FACTOR`.

    Returns:
        `factor` times the largest relative distance of any repetition up to each step; distances that shrink again do
        not narrow the band.
    """
    largest, result = 0.0, []
    for step in steps:
        distances = [abs(values[step] - reference[step]) / abs(reference[step]) for values in repetitions]
        largest = max(largest, *distances)
        result.append(max(floor, factor * largest))
    return result
