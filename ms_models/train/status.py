"""What each rank last said about itself, in a file that the launcher reads. Imports no MindSpore."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

RUNNING, FINISHED, FAILED = "running", "finished", "failed"
Kind = Literal["user", "run", "defect"]


@dataclass(frozen=True)
class Status:
    """State of one rank."""

    rank: int
    pid: int
    state: str
    at: float
    """Seconds since the epoch."""
    kind: Kind | None = None
    """Of a failure: a fault of the user's input, of the training itself, or of the program."""
    message: str = ""

    def write(self, logs: Path) -> None:
        """Replaces the rank's file in one step."""
        path = logs / file_name(self.rank)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(path)


def file_name(rank: int) -> str:
    """Name of a rank's file; its time of change is the rank's heartbeat."""
    return f"rank_{rank:05d}.json"


def report(logs: Path, rank: int, state: str, kind: Kind | None = None, message: str = "") -> None:
    """Writes this process's status."""
    Status(rank, os.getpid(), state, time.time(), kind, message).write(logs)


def read_all(logs: Path) -> dict[int, Status]:
    """Status of every rank that has reported, by rank."""
    found = (Status(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(logs.glob("rank_*.json")))
    return {status.rank: status for status in found}


def clear(logs: Path) -> None:
    """Removes the status files of an earlier start."""
    for path in logs.glob("rank_*.json"):
        path.unlink()
