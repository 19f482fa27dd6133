"""Driver, devices and CANN toolkit of an Ascend machine.

Code-verified, not measured: no NPU was at hand. The parser is tested on text in the driver's format, the judgements on
made-up machines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from migrate.check.codes import finding
from migrate.check.doctor import matrix
from migrate.check.doctor.cann import cann_version
from migrate.check.doctor.machine import Machine
from migrate.check.doctor.npu_smi import OK, NpuSmi, parse_npu_smi
from migrate.report import Finding

TIMEOUT_S = 30.0
HOT = 85
"""Degrees Celsius from which a chip is likely to slow down."""
BUSY = 0.1
"""Share of a device's memory that is in use while nothing of ours runs; an idle 64 GiB chip shows about 5 %."""
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


def is_present(machine: Machine) -> bool:
    """Whether this is meant to be an Ascend machine."""
    return machine.which("npu-smi") is not None or bool(machine.environment().get("ASCEND_HOME_PATH"))


def accelerator(machine: Machine, facts: dict[str, Any]) -> list[Finding]:
    """Judges driver, devices and toolkit.

    Args:
        machine: to examine.
        facts: receives versions and devices.
    """
    if machine.which("npu-smi") is None:
        return [finding("C108", "the CANN toolkit is set up (ASCEND_HOME_PATH), but npu-smi is not on PATH")]
    outcome = machine.run(["npu-smi", "info"], TIMEOUT_S)
    if outcome.returncode != 0:
        return [finding("C108", f"npu-smi info: {outcome.reason()}")]
    smi = parse_npu_smi(outcome.stdout)
    facts["driver"] = smi.driver or "unknown"
    facts["devices"] = [f"{one.label}: {one.name} {one.memory_total} MiB" for one in smi.devices]
    findings = [] if smi.devices else [finding("C108", "npu-smi info lists no device")]
    findings += _devices(smi) + _visibility(machine, smi)
    home = machine.environment().get("ASCEND_HOME_PATH")
    if not home or not Path(home).is_dir():
        return [*findings, finding("C108", f"npu-smi works, but ASCEND_HOME_PATH is {home!r}")]
    return findings + _toolkit(machine, Path(home), smi, facts)


def _devices(smi: NpuSmi) -> list[Finding]:
    findings = []
    for device in smi.devices:
        if device.health != OK:
            findings.append(finding("C115", f"{device.label} ({device.name}): health is {device.health}"))
        if device.temperature is not None and device.temperature >= HOT:
            findings.append(finding("C116", f"{device.label} ({device.name}): {device.temperature} degrees Celsius"))
        users = [one for one in smi.processes if (one.npu, one.chip) == (device.npu, device.chip)]
        if users or device.memory_used > BUSY * device.memory_total:
            names = ", ".join(f"{one.name} ({one.pid})" for one in users) or "no process is named"
            used = f"{device.memory_used} of {device.memory_total} MiB"
            findings.append(finding("C117", f"{device.label}: {used} are in use: {names}"))
    return findings


def _visibility(machine: Machine, smi: NpuSmi) -> list[Finding]:
    """What ranks of this machine will see of its devices."""
    findings, count = [], len(smi.devices)
    visible = machine.environment().get(VISIBLE)
    if visible is not None:
        numbers = [part.strip() for part in visible.split(",")]
        if not all(part.isdecimal() for part in numbers):
            findings.append(finding("C118", f"{VISIBLE} is {visible!r}, no list of device numbers"))
        elif len(set(numbers)) < len(numbers):
            findings.append(finding("C118", f"{VISIBLE} is {visible!r}, a device is there twice"))
        elif unknown := [part for part in numbers if int(part) >= count]:
            findings.append(finding("C118", f"{VISIBLE} names {', '.join(unknown)}, npu-smi lists {count} devices"))
    given = machine.device_files()
    if given is not None and given < count:
        message = f"npu-smi lists {count} devices, {given} are given to this container (/dev/davinci*)"
        findings.append(finding("C118", message))
    return findings


def _toolkit(machine: Machine, home: Path, smi: NpuSmi, facts: dict[str, Any]) -> list[Finding]:
    found = cann_version(home)
    if found is None:
        return [finding("C119", f"no version file of CANN under ASCEND_HOME_PATH {home}")]
    cann, findings = found[0], []
    facts["cann"] = cann
    mindspore = machine.version("mindspore")
    accepted = None if mindspore is None else matrix.cann_of(mindspore)
    if accepted is not None and matrix.release(cann) not in accepted:
        findings.append(finding("C120", f"CANN is {cann}; MindSpore {mindspore} accepts {', '.join(accepted)}"))
    driver = matrix.driver_of(cann)
    if driver is not None and smi.driver is not None and matrix.is_older(smi.driver, driver):
        findings.append(finding("C121", f"the driver is {smi.driver}; CANN {cann} was released with {driver}"))
    return findings
