"""Layouts that runs are saved and resumed in, and pairs of which the second resumes what the first one saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mappings.layout import ParallelLayout

STEPS = 2
SAVED = 1


@dataclass(frozen=True)
class Case:
    """A run."""

    layout: dict[str, int]
    model: str = "llama"
    jit: bool = False

    @property
    def parallel(self) -> ParallelLayout:
        """The layout as such."""
        return ParallelLayout.from_dict(dict(self.layout))

    def sections(self) -> dict[str, dict[str, Any]]:
        """Of the configuration; the global batch has as many sequences as there are ranks."""
        train = {
            "steps": STEPS, "eval_every": 0, "jit": self.jit, "micro_batch_size": 1,
            "accumulation": self.parallel.world_size // self.parallel.dp,
        }  # fmt: skip
        return {
            "layout": dict(self.layout),
            "train": train,
            "schedule": {"warmup_steps": 1},
            "checkpoint": {"every": SAVED, "keep": 4},
        }


CASES: dict[int, dict[str, Case]] = {
    2: {
        "dp2": Case({"dp": 2}),
        "dp2z1": Case({"dp": 2, "zero": 1}),
        "dp2z2": Case({"dp": 2, "zero": 2}),
        "dp2z3": Case({"dp": 2, "zero": 3}),
        "tp2": Case({"tp": 2}),
        "tp2-jit": Case({"tp": 2}, jit=True),
        "pp2": Case({"pp": 2}),
        "cp2": Case({"cp": 2}),
        "moe-dp2ep2z1": Case({"dp": 2, "ep": 2, "zero": 1}, "deepseek"),
        "moe-pp2": Case({"pp": 2}, "deepseek"),
    },
    4: {
        "dp2tp2z1": Case({"dp": 2, "tp": 2, "zero": 1}),
        "dp2tp2z3": Case({"dp": 2, "tp": 2, "zero": 3}),
        "dp2pp2z2": Case({"dp": 2, "pp": 2, "zero": 2}),
        "tp2pp2": Case({"tp": 2, "pp": 2}),
        "dp4z1": Case({"dp": 4, "zero": 1}),
        "tp2cp2": Case({"tp": 2, "cp": 2}),
        "cp2dp2": Case({"cp": 2, "dp": 2}),
        "moe-dp4ep2z1": Case({"dp": 4, "ep": 2, "zero": 1}, "deepseek"),
    },
}
PAIRS: dict[int, list[tuple[str, str]]] = {
    2: [
        ("dp2", "tp2"),
        ("dp2z1", "dp2"),
        ("dp2", "dp2z1"),
        ("dp2z1", "tp2"),
        ("dp2z2", "pp2"),
        ("dp2z3", "dp2z1"),
        ("tp2", "dp2z3"),
        ("tp2", "pp2"),
        ("pp2", "dp2z1"),
        ("cp2", "tp2"),
        ("moe-dp2ep2z1", "moe-pp2"),
        ("moe-pp2", "moe-dp2ep2z1"),
    ],
    4: [
        ("dp2tp2z1", "tp2pp2"),
        ("tp2pp2", "dp2tp2z1"),
        ("dp4z1", "dp2pp2z2"),
        ("dp2pp2z2", "tp2cp2"),
        ("tp2cp2", "dp2tp2z3"),
        ("dp2tp2z3", "dp4z1"),
        ("cp2dp2", "dp2tp2z1"),
    ],
}
FAULTS = {"random": "random", "moments": "moments", "position": "rows", "weights": "weights"}
"""What a resume leaves out, and the field of the trajectory that tells."""
