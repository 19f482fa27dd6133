"""`events.jsonl`: when a run started, resumed and ended, with the reason. Never cut, so that it tells every attempt."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_models.train.config.versions import versions
from ms_models.train.services.service import Service

EVENTS = "events.jsonl"
"""Name in the run directory."""


class Events(Service):
    """Appends an event with the time (seconds since the epoch) and the step behind which it happened.

    Args:
        path: the file.
        step: that the run goes on behind, 0 at the start.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path, self._step = path, step
        self._note("resume" if step else "start", versions=versions())

    def after_step(self, record: Mapping[str, Any]) -> None:
        """Notes a step that was left out, and the one that reached the target."""
        self._step = record["step"]
        if record.get("outcome", "updated") != "updated":
            self._note("skip", outcome=record["outcome"])
        if "target_loss" in record:
            self._note("target", target_loss=record["target_loss"], tokens=record["tokens"])

    def close(self, error: BaseException | None) -> None:
        """Notes the end."""
        if error is None:
            self._note("end")
        else:
            self._note("failure", kind=type(error).__name__, message=str(error))

    def _note(self, event: str, **facts: Any) -> None:
        line = json.dumps({"at": time.time(), "step": self._step, "event": event, **facts}) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
