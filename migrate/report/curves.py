"""Curves from JSONL files with a record per step: what trainings write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mappings.errors import UserError


def read_curve(path: Path, key: str) -> tuple[dict[int, float], int]:
    """Values of one field by step, and the number of records without it (evaluations, events).

    Raises:
        UserError: the file cannot be read, holds no such records, a step twice, or something that is no number.
    """
    values: dict[int, float] = {}
    others = 0
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no text file ({error.reason} at byte {error.start})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _record(path, number, line)
        if key not in record:
            others += 1
            continue
        step, value = record.get("step"), record[key]
        if type(step) is not int or isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{path}:{number}: step and {key} must be numbers, found {step!r} and {value!r}")
        if step in values:
            raise UserError(f"{path}:{number}: step {step} is there twice")
        values[step] = float(value)
    if not values:
        raise UserError(f"{path}: no record has {key!r}")
    return values, others


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{number}: not valid JSON ({error.msg})") from error
    if not isinstance(record, dict):
        raise UserError(f"{path}:{number}: must be a JSON object, found {type(record).__name__}")
    return record
