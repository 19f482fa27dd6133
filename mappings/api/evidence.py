"""What was executed for each row: read here, written only by `tests/mappings/factory.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.api.row import Row

EVIDENCE = Path(__file__).parent / "evidence.json"
OPDB_EVIDENCE = Path(__file__).parent / "evidence_opdb.json"


def row_key(row: Row) -> str:
    """Name and digest: evidence under another digest is of another row."""
    return f"{row.name} {row.digest()}"


def passing(found: Mapping[str, Any] | None) -> bool:
    """Whether evidence shows that a row is right: something was executed (or refused), and no written case failed."""
    if not found or "failed" in found:
        return False
    return bool(found.get("refuses") or found.get("cases") or found.get("samples", {}).get("right"))


def read_evidence() -> tuple[dict[str, Any], dict[str, Any]]:
    """Evidence by row key, and by entry of torch's operator database. Empty when the factory has not run yet."""
    rows, entries = (
        json.loads(path.read_text(encoding="ascii")) if path.exists() else {} for path in (EVIDENCE, OPDB_EVIDENCE)
    )
    return rows, entries
