"""`msrun`, and the all-reduce of two ranks that it starts."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path

from migrate.check.codes import finding
from migrate.check.doctor.machine import Machine
from migrate.report import Finding

RANKS = 2
TIMEOUT_S = 180.0  # a two-rank launch takes 20-30 s on two cores


def msrun(machine: Machine) -> list[Finding]:
    """msrun lies beside this interpreter, and a bare `msrun` would start this interpreter."""
    if machine.beside_python("msrun") is None:
        return [finding("C107", f"no msrun in {machine.python.parent}")]
    first = machine.which("python")
    if first is None or Path(first).parent != machine.python.parent:
        return [finding("C114", f"the first python on PATH is {first or 'missing'}, this one is {machine.python}")]
    return []


def collective(machine: Machine) -> list[Finding]:
    """Two ranks sum a tensor; each has to report the sum."""
    with tempfile.TemporaryDirectory(prefix="msmigrate-doctor-") as folder:
        out = Path(folder)
        command = [
            str(machine.beside_python("msrun")),
            f"--worker_num={RANKS}",
            f"--local_worker_num={RANKS}",
            f"--master_port={free_port()}",
            f"--log_dir={out / 'log'}",
            "--join=True",
            str(Path(__file__).with_name("collective_worker.py")),
            str(out),
        ]
        # msrun starts the first `python` on PATH, which must be this interpreter.
        path = f"{machine.python.parent}:{machine.environment().get('PATH', '')}"
        outcome = machine.run(command, TIMEOUT_S, {"PATH": path})
        results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("rank*.json"))]
    if outcome.returncode != 0:
        return [finding("C112", f"msrun with {RANKS} ranks: {outcome.reason()}")]
    expected = {"size": RANKS, "sum": [RANKS * (RANKS + 1) / 2] * 3}
    if results != [expected] * RANKS:
        return [finding("C112", f"ranks received {results}, expected {RANKS} times {expected}")]
    return []


def free_port() -> int:
    """A TCP port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
