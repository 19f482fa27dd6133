"""`metrics.jsonl`: a record of each step, evaluation and checkpoint, at full precision. Imports no MindSpore."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.train.services.service import Service

MEASURED = frozenset(
    {
        "tokens_per_s", "step_time_s", "data_wait", "time_data_s", "time_compute_s", "time_reduce_s", "time_update_s",
        "tflops", "mfu", "memory_gb", "memory_peak_gb", "compute_min_s", "compute_max_s", "slowest_rank",
        "reduce_share", "checkpoint_s", "checkpoint_blocked_s",
    }
)  # fmt: skip
"""Fields of records that differ between two runs that compute the same."""


class MetricsFile(Service):
    """Appends records.

    A resumed run first drops the records after its checkpoint, so that every step stands there once.
    """

    def __init__(self, path: Path, *, resume_step: int) -> None:
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step] if path.is_file() else []
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text("".join(_line(record) for record in kept), encoding="utf-8")
        temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def after_step(self, record: Mapping[str, Any]) -> None:
        """Appends one record, at once visible to readers."""
        self._file.write(_line(record))
        self._file.flush()

    after_evaluation = after_step

    def after_save(self, step: int, directory: Path, record: Mapping[str, Any]) -> None:
        """Appends its record."""
        self.after_step(record)

    def close(self, error: BaseException | None) -> None:
        """Everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every record of a metrics file.

    A last line without its end, left by a run that was killed while writing, is no record.

    Raises:
        UserError: another line is no JSON object with a step.
    """
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number} is not valid JSON ({error.msg})") from error
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            raise UserError(f"{path}: line {number} is no record with a step")
        records.append(record)
    return records


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"
