"""What `doctor` asks of the machine. One class, so that tests can put another machine in its place."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Outcome:
    """End of a command."""

    returncode: int | None
    """None: it was ended after its timeout."""
    stdout: str
    stderr: str

    def reason(self) -> str:
        """Why it failed, in one line: the last line it wrote, which is where Python puts the error."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        last = lines[-1] if lines else "no output"
        if self.returncode is None:
            return f"no answer in time; last line: {last}"
        if self.returncode < 0:
            return f"killed by {signal.Signals(-self.returncode).name}; last line: {last}"
        return f"exit {self.returncode}: {last}"


class Machine:
    """The machine this process runs on. Nothing here imports MindSpore or torch."""

    python = Path(sys.executable)

    def system(self) -> tuple[str, str, str]:
        """Operating system, processor, Python version."""
        return platform.system(), platform.machine(), platform.python_version()

    def version(self, distribution: str) -> str | None:
        """Installed version of a distribution, None if it is not installed."""
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None

    def environment(self) -> Mapping[str, str]:
        """Environment variables."""
        return os.environ

    def beside_python(self, program: str) -> Path | None:
        """A program in the directory of this interpreter."""
        path = self.python.parent / program
        return path if os.access(path, os.X_OK) else None

    def which(self, program: str) -> str | None:
        """A program on PATH."""
        return shutil.which(program)

    def run(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
        """Runs a command to its end, or ends it and all its descendants after `timeout_s` seconds."""
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
    """Kills a process with all its descendants. msrun leaves its workers behind when only it is killed."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [*root.children(recursive=True), root]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
