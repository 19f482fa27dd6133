"""`matrix.yaml`: which versions of MindSpore, CANN and driver belong together."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("matrix.yaml")
NUMBERS = re.compile(r"\d+(?:\.\d+)*")


@cache
def _table() -> dict[str, dict[str, Any]]:
    body: dict[str, dict[str, Any]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return body


def cann_of(mindspore: str) -> list[str] | None:
    """CANN releases (`8.5`) that a MindSpore version accepts; None where the table does not know it."""
    row = _table()["mindspore"].get(release(mindspore))
    return None if row is None else list(row["cann"])


def driver_of(cann: str) -> str | None:
    """Oldest driver release (`25.5`) for a CANN version; None where the table does not know it."""
    row = _table()["cann"].get(release(cann))
    return None if row is None else str(row["driver"])


def release(version: str) -> str:
    """The first two numbers of a version: `8.3.RC1` is of release `8.3`."""
    found = NUMBERS.search(version)
    return ".".join(found[0].split(".")[:2]) if found else version


def is_older(version: str, than: str) -> bool:
    """Whether one release comes before another."""
    return _numbers(release(version)) < _numbers(release(than))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdecimal()]
