"""What is likely wrong where a rung deviates: from the axis it added and from where the deviation shows first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

Place = Literal["forward", "gradient", "update"]
"""Where it shows first: in the loss of the first step, in its gradient norm alone, or only in later steps."""

RELATIVE = 0.02
"""How near a ratio must be to a power of the number of ranks to be named."""


@cache
def causes() -> dict[str, dict[str, str]]:
    """`causes.yaml`: axis, then place or `next`."""
    table: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text("utf-8"))
    return table


@dataclass(frozen=True)
class Deviation:
    """The first step and field that leave the band."""

    field: str
    step: int
    expected: float
    found: float
    limit: float
    """Relative."""

    @property
    def relative(self) -> float:
        """Difference over the size of what was expected; infinite where it is no number."""
        if not (math.isfinite(self.found) and math.isfinite(self.expected)) or not self.expected:
            return math.inf
        return abs(self.found - self.expected) / abs(self.expected)

    def place(self, first_step: int) -> Place:
        """See `Place`."""
        if self.step > first_step:
            return "update"
        return "forward" if self.field == "loss" else "gradient"


def likely(added: str, deviation: Deviation, first_step: int, factor: int) -> str:
    """The likely cause, in one sentence for each axis that was added.

    Args:
        added: axes, joined by a plus sign.
        deviation: what was found.
        first_step: of the run.
        factor: by how many times the ranks grew.
    """
    place = deviation.place(first_step)
    sentences = [causes()[axis][place] for axis in added.split("+") if axis]
    if place == "gradient" and (name := _ratio(deviation.found / deviation.expected, factor)):
        sentences.append(f"the norm is {name} what it should be")
    return "; ".join(sentences) or "nothing was added: the run does not repeat itself"


def hint(added: str) -> str:
    """What to try next."""
    return "; ".join(causes()[axis]["next"] for axis in added.split("+") if axis) or "run the rung once more"


def _ratio(ratio: float, factor: int) -> str:
    known = {
        f"{factor} times": float(factor),
        f"1/{factor} of": 1 / factor,
        f"sqrt({factor}) times": math.sqrt(factor),
        f"1/sqrt({factor}) of": 1 / math.sqrt(factor),
    }
    return next((name for name, value in known.items() if abs(ratio / value - 1) < RELATIVE), "")
