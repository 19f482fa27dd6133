"""A line search for the strong Wolfe conditions, with torch's choices of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Point = tuple[float, float, Any, float]
"""A step length, and the loss, the gradient and the slope (gradient times direction) there."""


def strong_wolfe(
    evaluate: Callable[[float], tuple[float, Any, float]],
    t: float,
    start: tuple[float, Any, float],
    size: float,
    tolerance: float,
    most: int,
) -> tuple[float, Any, float, int]:
    """A step length that lowers the loss enough and flattens the slope (Nocedal and Wright, algorithms 3.5 and 3.6).

    Args:
        evaluate: loss, gradient and slope at a length.
        t: first length to try.
        start: loss, gradient and slope at length 0.
        size: largest entry of the direction; an interval shorter than `tolerance` in it is not divided any more.
        most: largest number of further lengths.

    Returns:
        Loss, gradient, length and the number of evaluations.
    """
    loss, gradient, slope = start

    def too_high(point: Point) -> bool:
        return point[1] > loss + 1e-4 * point[0] * slope

    def flat(point: Point) -> bool:
        return abs(point[3]) <= -0.9 * slope

    before: Point = (0.0, loss, gradient, slope)
    now: Point = (t, *evaluate(t))
    calls, tries, found = 1, 0, False
    interval: list[Point] = []
    while tries < most:
        if too_high(now) or (tries > 1 and now[1] >= before[1]):
            interval = [before, now]
            break
        if flat(now):
            interval, found = [now], True
            break
        if now[3] >= 0:
            interval = [before, now]
            break
        bounds = now[0] + 0.01 * (now[0] - before[0]), now[0] * 10
        longer = cubic_minimum(before, now, bounds)
        before, now = now, (longer, *evaluate(longer))
        calls, tries = calls + 1, tries + 1
    if not interval:
        interval = [(0.0, loss, gradient, slope), now]

    stalled = False
    low, high = (0, 1) if interval[0][1] <= interval[-1][1] else (1, 0)
    while not found and tries < most:
        left, right = sorted(point[0] for point in interval)
        if (right - left) * size < tolerance:
            break
        length = cubic_minimum(interval[0], interval[1])
        margin = 0.1 * (right - left)
        if min(right - length, length - left) < margin:  # too near an end: go inside, at the second time or beyond it
            if stalled or length >= right or length <= left:
                length = right - margin if abs(length - right) < abs(length - left) else left + margin
                stalled = False
            else:
                stalled = True
        else:
            stalled = False
        now = (length, *evaluate(length))
        calls, tries = calls + 1, tries + 1
        if too_high(now) or now[1] >= interval[low][1]:
            interval[high] = now
            low, high = (0, 1) if interval[0][1] <= interval[1][1] else (1, 0)
        else:
            if flat(now):
                found = True
            elif now[3] * (interval[high][0] - interval[low][0]) >= 0:
                interval[high] = interval[low]
            interval[low] = now
    best = interval[low]
    return best[1], best[2], best[0], calls


def cubic_minimum(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two losses and slopes is least, kept within `bounds` (the two lengths)."""
    left, right = (a, b) if a[0] <= b[0] else (b, a)
    least, most = bounds or (left[0], right[0])
    d1 = a[3] + b[3] - 3 * (a[1] - b[1]) / (a[0] - b[0])
    square = d1**2 - a[3] * b[3]
    if square < 0:
        return (least + most) / 2.0
    root = square**0.5
    place = right[0] - (right[0] - left[0]) * ((right[3] + root - d1) / (right[3] - left[3] + 2 * root))
    return float(min(max(place, least), most))
