"""Child processes of the tools: run to an end or a timeout, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

KILL_GRACE_S = 10.0  # a killed process that sits in the kernel takes a while


@dataclass(frozen=True)
class Outcome:
    """End of a command."""

    returncode: int | None
    """None: it was ended after its timeout."""
    stdout: str
    stderr: str

    def reason(self) -> str:
        """Why it failed, in one line: the last line it wrote, which is where Python puts the error."""
        lines = [line.strip() for line in (self.stderr.strip() or self.stdout).splitlines() if line.strip()]
        last = lines[-1] if lines else "no output"
        if self.returncode is None:
            return f"no answer in time; last line: {last}"
        if self.returncode < 0:
            return f"killed by {signal.Signals(-self.returncode).name}; last line: {last}"
        return f"exit {self.returncode}: {last}"


def run(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
    """Runs a command to its end, or ends it and all its descendants after `timeout_s` seconds.

    Args:
        command: program and arguments; no shell.
        timeout_s: seconds.
        environment: variables to set on top of this process's.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
        return Outcome(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        end_tree(process.pid)
        stdout, stderr = process.communicate()
        return Outcome(None, stdout, stderr)
    except BaseException:
        end_tree(process.pid)
        process.wait()
        raise


def end_tree(pid: int) -> None:
    """Kills a process with all its descendants, and waits until none of them runs.

    msrun leaves its workers behind when only it is killed. Each process is stopped before its children are listed, so
    that none is started behind the list.
    """
    tree: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        _stop(psutil.Process(pid), tree)
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    limit = time.monotonic() + KILL_GRACE_S
    while any(map(_runs, tree)) and time.monotonic() < limit:
        time.sleep(0.01)


def _stop(process: psutil.Process, tree: list[psutil.Process]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        tree.append(process)
        for child in process.children():
            _stop(child, tree)


def _runs(process: psutil.Process) -> bool:
    """A zombie does not: where the parent of orphans never reaps, it stays one for ever."""
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
