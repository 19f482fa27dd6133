"""What `doctor` asks of the machine. One class, so that tests can put another machine in its place."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import psutil

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

    def device_files(self) -> int | None:
        """NPUs that this machine or container was given; None where it has none."""
        names = [path.name.removeprefix("davinci") for path in Path("/dev").glob("davinci[0-9]*")]
        return sum(name.isdecimal() for name in names) or None

    def cores(self) -> int:
        """Processor cores that this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def available_memory(self) -> int:
        """Bytes that can be had without swapping."""
        return int(psutil.virtual_memory().available)

    def free_space(self, path: str) -> int | None:
        """Free bytes of a file system; None where it does not exist."""
        return shutil.disk_usage(path).free if Path(path).is_dir() else None

    def open_files(self) -> int:
        """Files that a process may have open."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def host_name(self) -> str:
        """What this machine calls itself."""
        return socket.gethostname()

    def resolves(self, name: str) -> bool:
        """Whether a name has an address."""
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return False
        return True

    def can_listen(self) -> bool:
        """Whether a port can be opened for others of this machine."""
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                probe.listen()
        except OSError:
            return False
        return True

    def interfaces(self) -> dict[str, list[str]]:
        """Network interfaces with their addresses."""
        return {name: [one.address for one in found] for name, found in psutil.net_if_addrs().items()}

    def run(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
        """Runs a command to its end, or ends it and all its descendants after `timeout_s` seconds."""
        return run(command, timeout_s, environment)
