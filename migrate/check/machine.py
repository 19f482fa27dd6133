"""What `doctor` asks of the machine. One class, so that tests can put another machine in its place."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from migrate.processes import Outcome, run


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
        return run(command, timeout_s, environment)
