"""Memory, disk, limits and names of the host, of which a run needs some."""

from __future__ import annotations

from typing import Any

from migrate.check.codes import finding
from migrate.check.doctor.machine import Machine
from migrate.report import Finding

GIB = 1 << 30
MEMORY = 2 * GIB
"""Two processes of MindSpore with a small model; each takes about 0.8 GiB by itself."""
SHARED_MEMORY = GIB
DISK = 2 * GIB
OPEN_FILES = 1024


def resources(machine: Machine, facts: dict[str, Any]) -> list[Finding]:
    """Judges the host.

    Args:
        machine: to examine.
        facts: receives the figures.
    """
    memory, shared, disk = machine.available_memory(), machine.free_space("/dev/shm"), machine.free_space(".")
    files, name = machine.open_files(), machine.host_name()
    facts["cores"] = machine.cores()
    facts["memory available"] = _gib(memory)
    facts["disk free"] = _gib(disk)
    findings = []
    if memory < MEMORY:
        findings.append(finding("C125", f"{_gib(memory)} of memory are available"))
    if disk is not None and disk < DISK:
        findings.append(finding("C126", f"{_gib(disk)} are free where this was started"))
    if shared is not None and shared < SHARED_MEMORY:
        findings.append(finding("C127", f"{_gib(shared)} of shared memory (/dev/shm) are free"))
    if files < OPEN_FILES:
        findings.append(finding("C128", f"a process may open {files} files"))
    if not machine.resolves(name):
        findings.append(finding("C129", f"the name of this machine, {name!r}, has no address"))
    if not machine.can_listen():
        findings.append(finding("C130", "no TCP port of 127.0.0.1 can be opened"))
    return findings


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
