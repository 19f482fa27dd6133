"""`Measured`: what a finished rung left behind, read from its metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mappings.errors import UserError

FIELDS = ("loss", "grad_norm")
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Measured:
    """Curves and speed of one rung."""

    curves: Mapping[str, Mapping[int, float]]
    """Field to value by step."""
    tokens_per_s: float | None
    """Median over the steps after the first, which compiles; None where there is only one."""
    step_s: float | None
    memory_gb: float | None
    """Most that a rank held, where the run recorded it."""

    @property
    def steps(self) -> list[int]:
        """Ascending."""
        return sorted(self.curves["loss"])


def read(directory: Path) -> Measured:
    """Reads the metrics of a run directory.

    Raises:
        UserError: there are none, or a record is no record of a step.
    """
    path = directory / METRICS
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    steps: list[dict[str, Any]] = [record for record in records if "loss" in record]
    if not steps:
        raise UserError(f"{path}: no record of a step")
    nan = float("nan")
    curves = {
        field: {record["step"]: nan if record[field] is None else float(record[field]) for record in steps}
        for field in FIELDS
    }
    later = steps[1:]
    peaks = [record["memory_peak_gb"] for record in steps if record.get("memory_peak_gb") is not None]
    return Measured(
        curves,
        median(record["tokens_per_s"] for record in later) if later else None,
        median(record["step_time_s"] for record in later) if later else None,
        max(peaks) if peaks else None,
    )
