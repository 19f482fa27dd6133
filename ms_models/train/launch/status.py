"""What each rank last said about itself, in a file that the launcher reads. Imports no MindSpore."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import psutil

NODE = "MSMIGRATE_NODE"
"""Environment variable that tells a rank which machine of the run it is on."""
ENDING_S = 1.0
"""How long a killed process, whose connections are closed already, may still be seen as running."""
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
    lost: list[int] = field(default_factory=list)
    """Of a defect: the ranks of its machine that had died before it, whose death is then the reason."""
    node: int = 0
    """The machine that `pid` belongs to."""

    def write(self, logs: Path) -> None:
        """Replaces the rank's file in one step."""
        path = logs / file_name(self.rank)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(path)


def file_name(rank: int) -> str:
    """Name of a rank's file."""
    return f"rank_{rank:05d}.json"


def report(logs: Path, rank: int, state: str, kind: Kind | None = None, message: str = "") -> None:
    """Writes this process's status."""
    at = time.time()
    lost = lost_ranks(logs) if kind == "defect" else []
    Status(rank, os.getpid(), state, at, kind, message, lost, own_node()).write(logs)


def own_node() -> int:
    """The machine this process is on."""
    return int(os.environ.get(NODE, "0"))


def lost_ranks(logs: Path) -> list[int]:
    """Ranks that died without a word; asked by a rank that fails, and may fail because one did."""
    deadline = time.monotonic() + ENDING_S
    while True:
        reported = {rank: one for rank, one in read_all(logs).items() if one.node == own_node()}
        gone = silently_dead(reported)
        if gone or len(reported) < 2 or time.monotonic() > deadline:
            return gone
        time.sleep(ENDING_S / 20)


def silently_dead(reported: dict[int, Status]) -> list[int]:
    """Ranks, all of this machine, that still say that they run and do not."""
    return [rank for rank, status in reported.items() if status.state == RUNNING and not is_alive(status.pid)]


def is_alive(pid: int) -> bool:
    """Whether a process of this machine still runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def read_all(logs: Path, ranks: Iterable[int] | None = None) -> dict[int, Status]:
    """Status by rank: of every rank that has reported, or of those among `ranks`."""
    if ranks is None:
        paths = sorted(logs.glob("rank_*.json"))
    else:
        paths = [path for rank in ranks if (path := logs / file_name(rank)).is_file()]
    found = (Status(**json.loads(path.read_text(encoding="utf-8"))) for path in paths)
    return {status.rank: status for status in found}


def clear(logs: Path) -> None:
    """Removes the status files of an earlier start."""
    for path in logs.glob("rank_*.json"):
        path.unlink()
