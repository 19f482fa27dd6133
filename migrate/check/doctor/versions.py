"""Operating system, Python, and the packages that a run or a conversion needs."""

from __future__ import annotations

from migrate.check.codes import finding
from migrate.check.doctor.machine import Machine
from migrate.report import Finding

PYTHON = "3.11"
MINDSPORE = "2.10"
PACKAGES = ("mindspore", "numpy", "transformers", "tokenizers", "torch", "safetensors", "libcst")


def facts(machine: Machine) -> dict[str, object]:
    """Versions by name."""
    system, processor, python = machine.system()
    found: dict[str, object] = {"system": f"{system} {processor}", "python": python}
    found.update({name: machine.version(name) or "not installed" for name in PACKAGES})
    return found


def system(machine: Machine) -> list[Finding]:
    """What MindSpore is published for."""
    name, processor, python = machine.system()
    findings = []
    if name != "Linux" or processor not in ("x86_64", "aarch64"):
        findings.append(finding("C101", f"this is {name} on {processor}"))
    if not python.startswith(f"{PYTHON}."):
        findings.append(finding("C102", f"Python is {python}, expected {PYTHON}"))
    return findings


def packages(machine: Machine) -> list[Finding]:
    """Installed packages in the versions that the toolkit is tested with."""
    findings = []
    numpy = machine.version("numpy")
    if numpy is None or _major(numpy) >= 2:
        findings.append(finding("C103", f"numpy is {numpy or 'not installed'}, expected 1.26"))
    mindspore = machine.version("mindspore")
    if mindspore is None:
        findings.append(finding("C104", "mindspore is not installed"))
    elif not mindspore.startswith(f"{MINDSPORE}."):
        findings.append(finding("C105", f"mindspore is {mindspore}, expected {MINDSPORE}"))
    if machine.version("torch") is None:
        findings.append(finding("C109", "torch is not installed"))
    transformers = machine.version("transformers")
    if transformers is None:
        findings.append(finding("C110", "transformers is not installed"))
    elif _major(transformers) < 5:
        findings.append(finding("C111", f"transformers is {transformers}"))
    if machine.version("tokenizers") is None:
        findings.append(finding("C113", "tokenizers is not installed"))
    return findings


def _major(version: str) -> int:
    return int(version.partition(".")[0])
