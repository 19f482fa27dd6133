"""What is likely wrong where a rung deviates: from the axis it added and from where the deviation shows first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Place = Literal["forward", "gradient", "update"]
"""Where it shows first: in the loss of the first step, in its gradient norm alone, or only in later steps."""

CAUSES: dict[str, dict[Place, str]] = {
    "dp": {
        "forward": "replicas do not see disjoint parts of the global batch, or the loss is an average of each replica's "
        "average instead of a sum over the tokens of all",
        "gradient": "gradients are not summed over replicas, are summed twice, or are divided by the number of replicas "
        "although the loss is divided by all tokens",
        "update": "replicas' weights drift: states divided over dp (ZeRO) are stale or gathered from the wrong rows, or "
        "random numbers differ between replicas",
    },
    "tp": {
        "forward": "a result of a row-parallel layer, the embedding or the loss over the vocabulary is not summed over tp, "
        "or is summed twice; or heads and rows were dealt out in another order than they were saved",
        "gradient": "where the residual stream enters cut layers the gradient is not summed over tp; or what every rank "
        "holds (norms, biases, routers; with sequence parallelism) misses its sum, or is counted on every rank in the norm",
        "update": "copies of what every tp rank holds drift apart: one rank updates it with another gradient",
    },
    "pp": {
        "forward": "micro-batches meet layers in the wrong order, or embedding, last norm or head are on the wrong stage",
        "gradient": "the number of micro-batches enters the loss once too often or not at all, or a tied table's gradient "
        "is not summed over both ends, or counted twice in the norm",
        "update": "a tied table differs on both ends, or stages clip with a norm of their own",
    },
    "cp": {
        "forward": "positions or masks of the parts of a sequence are wrong, or the labels at the seams",
        "gradient": "the loss is divided by the tokens of a part instead of the whole, or gradients are not summed over cp",
        "update": "copies on the context-parallel ranks drift apart",
    },
}  # fmt: skip
HINTS = {
    "dp": "compare one gradient with one process (tests/multi_process/test_grid.py does); check train.accumulation x dp",
    "tp": "run with layout.tp only, and with parallel.sequence_parallel: false, to tell both apart",
    "pp": "run the same stages with schedule gpipe, and with an untied head",
    "cp": "run with the other parallel.context",
}
RELATIVE = 0.02
"""How near a ratio must be to a power of the number of ranks to be named."""


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
    sentences = [CAUSES[axis][place] for axis in added.split("+") if axis in CAUSES]
    if place == "gradient" and (name := _ratio(deviation.found / deviation.expected, factor)):
        sentences.append(f"the norm is {name} what it should be")
    return "; ".join(sentences) or "nothing was added: the run does not repeat itself"


def hint(added: str) -> str:
    """What to try next."""
    return "; ".join(HINTS[axis] for axis in added.split("+") if axis in HINTS) or "run the rung once more"


def _ratio(ratio: float, factor: int) -> str:
    known = {
        f"{factor} times": float(factor),
        f"1/{factor} of": 1 / factor,
        f"sqrt({factor}) times": math.sqrt(factor),
        f"1/sqrt({factor}) of": 1 / math.sqrt(factor),
    }
    return next((name for name, value in known.items() if abs(ratio / value - 1) < RELATIVE), "")
