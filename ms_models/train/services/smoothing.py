"""`Smoothed`: the exponential average of a loss, and how far single values are from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Smoothed:
    """Average and spread of the values so far, each divided by the weights that went into it.

    Attributes:
        past: weight of what was before, from 0 to below 1.
    """

    past: float
    _sum: float = 0.0
    _weights: float = 0.0
    _squares: float = 0.0
    _square_weights: float = 0.0

    @classmethod
    def over(cls, past: float, values: Iterable[float | None]) -> Smoothed:
        """What there is after some values; None is no value."""
        made = cls(past)
        for value in values:
            if value is not None:
                made.add(value)
        return made

    def add(self, value: float) -> None:
        """Takes in a finite value."""
        new = 1 - self.past
        if self._weights:
            distance = value - self.mean
            self._squares = self.past * self._squares + new * distance * distance
            self._square_weights = self.past * self._square_weights + new
        self._sum = self.past * self._sum + new * value
        self._weights = self.past * self._weights + new

    @property
    def known(self) -> bool:
        """Whether there was a value."""
        return self._weights > 0

    @property
    def mean(self) -> float:
        """The average; NaN without a value."""
        return self._sum / self._weights if self._weights else math.nan

    @property
    def spread(self) -> float:
        """Root of the average squared distance of a value to the average before it; 0 up to the first value."""
        return math.sqrt(self._squares / self._square_weights) if self._square_weights else 0.0
