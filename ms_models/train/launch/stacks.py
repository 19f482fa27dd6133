"""Python stacks of ranks that hang: asked for by signal, written by `faulthandler` from within, read here.

The handler is C code that needs neither the interpreter's lock nor a running loop, so that a rank answers from inside
an operation, too. A rank that is stopped or waits for a device in the kernel does not. Imports no MindSpore.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

SIGNAL = signal.SIGUSR1
ANSWER_S = 3.0
"""How long a rank is given to write its stacks."""
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
MAIN = "runpy"
"""In the stack of a worker's main thread alone, because workers are started with `python -m`."""
INSTALLED = "site-packages"


@dataclass(frozen=True)
class Trace:
    """What is known about a rank that may hang."""

    state: str
    """Of the process, as the operating system says: `stopped`, `sleeping`, ..."""
    frames: tuple[str, ...]
    """Of the main thread, the innermost first, each `folder/file.py:line in function`, of an installed package from its
    name on; empty where the rank did not answer."""

    @property
    def last(self) -> str:
        """The innermost frame."""
        return self.frames[0] if self.frames else f"no answer to {SIGNAL.name}"

    @property
    def is_waiting(self) -> bool:
        """Whether the rank is in an operation, as all are that wait for another rank."""
        return bool(self.frames) and self.frames[0].startswith("mindspore/")

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trace:
        """From plain data."""
        return cls(values["state"], tuple(values["frames"]))


def file_name(rank: int) -> str:
    """Where a rank writes its stacks."""
    return f"stacks_rank_{rank}.txt"


def answer_requests(logs: Path, rank: int) -> None:
    """In a worker: from now on the signal has it append the stacks of all its threads to its file."""
    # Never closed: the handler writes to its descriptor for as long as the process lives.
    file = (logs / file_name(rank)).open("a", encoding="utf-8")
    faulthandler.register(SIGNAL, file=file, all_threads=True)


def collect(logs: Path, pids: Mapping[int, int]) -> dict[int, Trace]:
    """Asks ranks of this machine for their stacks.

    Args:
        logs: of the run.
        pids: process of each rank.
    """
    paths = {rank: logs / file_name(rank) for rank in pids}
    before = {rank: _size(path) for rank, path in paths.items()}
    states, asked = {}, []
    for rank, pid in pids.items():
        try:
            states[rank] = str(psutil.Process(pid).status())
            # A process that has not got as far as to answer would be ended by the signal.
            if paths[rank].is_file():
                os.kill(pid, SIGNAL)
                asked.append(rank)
        except (psutil.NoSuchProcess, ProcessLookupError):
            states[rank] = "gone"
    _wait(lambda: all(_size(paths[rank]) > before[rank] for rank in asked))
    time.sleep(0.2 if asked else 0)  # the rest of a dump that has begun
    return {rank: Trace(states[rank], main_thread(_new_text(paths[rank], before[rank]))) for rank in pids}


def main_thread(dump: str) -> tuple[str, ...]:
    """The frames of the main thread in what `faulthandler` wrote; empty where it is not there."""
    for block in dump.split("\n\n"):
        for part in re.split(r"^(?:Current thread|Thread) .*$", block, flags=re.MULTILINE):
            if MAIN in part:
                return tuple(_short(match) for match in FRAME.finditer(part))
    return ()


def _short(match: re.Match[str]) -> str:
    parts = Path(match["file"]).parts
    begin = parts.index(INSTALLED) + 1 if INSTALLED in parts else -2
    return f"{'/'.join(parts[begin:])}:{match['line']} in {match['function']}"


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.05)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _new_text(path: Path, start: int) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", errors="replace")
