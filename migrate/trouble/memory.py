"""Symptoms of memory."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import ends, figures
from migrate.trouble.rule import Evidence, TroubleRule

FEW = 40
GROWTH, LEAST_GB = 1.1, 0.05
UNEVEN = 1.5


def grows(run: RunRecord) -> Iterator[Evidence]:
    """Over the second half, in which everything has been allocated once."""
    points = figures(run, "memory_gb", FEW)
    half = points[len(points) // 2 :]
    first, last = ends(half)
    if last > GROWTH * first and last - first > LEAST_GB:
        yield Evidence(f"{first:.2f} GB around step {half[0][0]}, {last:.2f} GB around step {half[-1][0]}")


def uneven(run: RunRecord) -> Iterator[Evidence]:
    """Between ranks."""
    peaks = [(float(one["memory_peak_gb"]), one["rank"]) for one in run.ranks if "memory_peak_gb" in one]
    if len(peaks) > 1 and max(peaks)[0] > UNEVEN * min(peaks)[0]:
        (most, rank), (least, other) = max(peaks), min(peaks)
        yield Evidence(f"rank {rank} needs {most:.2f} GB at most, rank {other} {least:.2f} GB", "ranks.json")


RULES = (
    TroubleRule(
        "T701", "memory grows from step to step", Severity.WARNING,
        "Something is kept per step: results that are never read, a compile cache that a changing shape fills, "
        "checkpoints that wait to be written.",
        "Keep shapes fixed, write checkpoints to a faster disk; restart from a checkpoint before memory runs out.",
        grows,
    ),
    TroubleRule(
        "T702", "ranks need very different amounts of memory", Severity.NOTE,
        "Stages of the pipeline hold different parts: the first ones keep more micro-batches, the ends hold the "
        "embedding and the head.",
        "The fullest rank bounds the batch: give its stage fewer layers, or recompute there.",
        uneven,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
