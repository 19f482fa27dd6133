"""Variables that ranks inherit and that change, unasked, how they find each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from migrate.check.codes import finding
from migrate.check.doctor.machine import Machine
from migrate.report import Finding

LEFT_BY_LAUNCHERS = ("MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID", "MS_SCHED_HOST", "MS_SCHED_PORT", "RANK_ID", "RANK_SIZE")
RANK_TABLE = "RANK_TABLE_FILE"
INTERFACE = "HCCL_SOCKET_IFNAME"
ADDRESS = "HCCL_IF_IP"
SIMULATION = "MS_SIMULATION_LEVEL"


def rank_environment(machine: Machine) -> list[Finding]:
    """Left-overs of earlier launches, and network settings of HCCL that name nothing on this machine."""
    environment = machine.environment()
    findings = []
    if left := [name for name in LEFT_BY_LAUNCHERS if name in environment]:
        findings.append(
            finding("C122", f"set by an earlier launcher: {', '.join(left)}", fix=f"unset {' '.join(left)}")
        )
    table = environment.get(RANK_TABLE)
    if table is not None:
        state = "is there" if Path(table).is_file() else "does not exist"
        findings.append(finding("C123", f"{RANK_TABLE} is {table}, which {state}"))
    if SIMULATION in environment:
        findings.append(finding("C122", f"{SIMULATION} is {environment[SIMULATION]}: nothing would really run"))
    return findings + _network(environment, machine.interfaces())


def _network(environment: Mapping[str, str], interfaces: Mapping[str, list[str]]) -> list[Finding]:
    findings = []
    wanted = environment.get(INTERFACE)
    # `=eth0` is a whole name, `eth` a beginning, `^docker` what is left out.
    if wanted and not wanted.startswith("^"):
        exact, names = wanted.startswith("="), wanted.removeprefix("=").split(",")
        if not any(one == name if exact else one.startswith(name) for one in interfaces for name in names if name):
            findings.append(finding("C124", f"{INTERFACE} is {wanted}, this machine has {', '.join(interfaces)}"))
    address = environment.get(ADDRESS)
    if address and not any(address in addresses for addresses in interfaces.values()):
        findings.append(finding("C124", f"{ADDRESS} is {address}, which no interface of this machine has"))
    return findings
