"""`Restarts`: whether a run that failed is tried again, and the record of it in `restarts.jsonl`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ms_models.train.launch.failure import Failure

RECORD = "restarts.jsonl"
MOST_PAUSE_S = 300.0


@dataclass(frozen=True)
class Attempt:
    """One start of all processes."""

    number: int
    """1 for the first."""
    resume: str | None
    """Checkpoint directory it went on from; None for the beginning."""


class Restarts:
    """The budget of restarts of one launch.

    Args:
        run: run directory.
        allowed: number of restarts.
        pause_s: seconds before the first; doubled with each, up to `MOST_PAUSE_S`.
    """

    def __init__(self, run: Path, allowed: int, pause_s: float) -> None:
        self._path, self.allowed, self._pause_s = run / RECORD, allowed, pause_s
        self.used = 0
        self._before: tuple[object, ...] | None = None

    def refusal(self, failure: Failure, attempt: Attempt, step: int) -> str | None:
        """Why the run is not tried again; None if it is.

        A failure of the same kind and rank in the same step after the same start brings nothing new: it would come
        every time.
        """
        seen = (failure.cause, failure.rank, failure.node, step, attempt.resume)
        repeats, self._before = seen == self._before, seen
        if not failure.is_restartable or not self.allowed:
            return ""
        if repeats:
            return f"not restarted: the attempt before ended the same way in step {step}, without a checkpoint between"
        if self.used >= self.allowed:
            return f"not restarted: launch.restarts={self.allowed} are used up"
        return None

    def take(self, failure: Failure, attempt: Attempt, step: int, resume: str | None) -> float:
        """Uses one, and writes it down.

        Args:
            failure: what ended the attempt.
            attempt: that ended.
            step: in which it did.
            resume: checkpoint directory the next one goes on from; None for the beginning.

        Returns:
            Seconds to wait before it.
        """
        pause = min(self._pause_s * 2**self.used, MOST_PAUSE_S)
        self.used += 1
        record = {
            "at": time.time(), "restart": self.used, "cause": failure.cause, "rank": failure.rank,
            "node": failure.node, "message": failure.message, "step": step, "resumed_before": attempt.resume,
            "resumes": resume, "pause_s": pause,
        }  # fmt: skip
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return pause
