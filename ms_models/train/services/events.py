"""`Events`: what the first rank writes to `events.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_models.train.config.versions import versions
from ms_models.train.run_events import note
from ms_models.train.services.service import Service


class Events(Service):
    """Notes the start, steps that were left out, the target and the end.

    Args:
        run: run directory.
        step: that the run goes on behind, 0 at the start.
    """

    def __init__(self, run: Path, step: int) -> None:
        self._run, self._step = run, step
        note(run, "resume" if step else "start", step, versions=versions())

    def after_step(self, record: Mapping[str, Any]) -> None:
        """Notes a step that was left out, and the one that reached the target."""
        self._step = record["step"]
        if record.get("outcome", "updated") != "updated":
            note(self._run, "skip", self._step, outcome=record["outcome"])
        if "target_loss" in record:
            note(self._run, "target", self._step, target_loss=record["target_loss"], tokens=record["tokens"])

    def close(self, error: BaseException | None) -> None:
        """Notes the end."""
        if error is None:
            note(self._run, "end", self._step)
        else:
            note(self._run, "failure", self._step, kind=type(error).__name__, message=str(error))
