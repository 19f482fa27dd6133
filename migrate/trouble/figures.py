"""Statistics that several rules use."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from migrate.run_record import RunRecord
from migrate.trouble.rule import NoEvidenceError


def losses(run: RunRecord) -> list[tuple[int, float]]:
    """(step, loss) of the steps that were taken."""
    return [(one["step"], float(one["loss"])) for one in run.steps if one["loss"] is not None]


def figures(run: RunRecord, key: str, least: int = 1) -> list[tuple[int, float]]:
    """(step, value) of a figure of steps.

    Raises:
        NoEvidenceError: fewer than `least` steps have it.
    """
    found = [(one["step"], float(one[key])) for one in run.steps if isinstance(one.get(key), int | float)]
    if len(found) < least:
        raise NoEvidenceError(f"{key} of {least} steps")
    return found


def after_warmup(run: RunRecord, points: Sequence[tuple[int, float]], least: int) -> list[tuple[int, float]]:
    """The points behind the warmup.

    Raises:
        NoEvidenceError: fewer than `least`.
    """
    found = [point for point in points if point[0] > int(run.setting("schedule.warmup_steps", 0))]
    if len(found) < least:
        raise NoEvidenceError(f"{least} steps after the warmup")
    return found


def ends(points: Sequence[tuple[int, float]], share: float = 0.1) -> tuple[float, float]:
    """Averages over the first and over the last share of the points."""
    count = max(1, round(len(points) * share))
    return fmean(value for _, value in points[:count]), fmean(value for _, value in points[-count:])


def middle(points: Sequence[tuple[int, float]]) -> float:
    """Median of the values."""
    return median(value for _, value in points)


def named(steps: Sequence[int], most: int = 6) -> str:
    """`steps 3, 4 and 5`, long lists cut."""
    shown = [str(step) for step in steps[:most]]
    if len(steps) > most:
        return f"steps {', '.join(shown)} and {len(steps) - most} more"
    return f"step{'s' if len(steps) > 1 else ''} " + (
        " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
    )
