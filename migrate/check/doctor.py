"""`msmigrate doctor`: versions, one computation, msrun, devices and a collective, before anything relies on them."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path

from migrate.check.codes import finding
from migrate.check.machine import Machine
from migrate.report import Finding, Report, Severity, Stage, Verdict

PYTHON = "3.11"
MINDSPORE = "2.10"
PACKAGES = ("mindspore", "numpy", "transformers", "tokenizers", "torch", "safetensors", "libcst")
RANKS = 2
# Importing MindSpore takes about 4 s, a two-rank launch 20-30 s on two cores; the rest is reserve for slow disks.
OPERATION_TIMEOUT_S = 120.0
COLLECTIVE_TIMEOUT_S = 180.0
SMI_TIMEOUT_S = 30.0
# A scalar argument and a bfloat16 cast are what breaks first under numpy 2; the matmul needs a working kernel library.
OPERATION = """
import json, numpy as np, mindspore as ms
ms.runtime.launch_blocking()
x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
print(json.dumps({
    "scalar": (x * 2.0 + 1.0).asnumpy().sum().item(),
    "matmul": ms.ops.matmul(x, x.T).asnumpy().tolist(),
    "bfloat16": x.astype(ms.bfloat16).astype(ms.float32).asnumpy().sum().item(),
}))
"""
EXPECTED = {"scalar": 36.0, "matmul": [[5.0, 14.0], [14.0, 50.0]], "bfloat16": 15.0}


def doctor(*, collective: bool = False, machine: Machine | None = None) -> Report:
    """Judges the machine. MindSpore is started in a child process only.

    Args:
        collective: also launch two ranks and all-reduce between them (20-30 s).
        machine: what to examine; this one by default.
    """
    machine = machine or Machine()
    report = Report("doctor", machine.python.parent.parent.name, facts=_versions(machine))
    _stage(report, "system", _system(machine), 2)
    _stage(report, "packages", _packages(machine), len(PACKAGES))
    if machine.version("mindspore") is None:
        report.stages.append(Stage("minimal computation", Verdict.SKIPPED, "MindSpore is not installed"))
    else:
        _stage(report, "minimal computation", _operation(machine), len(EXPECTED))
    _stage(report, "msrun", _msrun(machine), 1)
    if machine.which("npu-smi") is None and not machine.environment().get("ASCEND_HOME_PATH"):
        report.stages.append(Stage("accelerator", Verdict.SKIPPED, "neither npu-smi nor CANN: this is a CPU machine"))
    else:
        _stage(report, "accelerator", _accelerator(machine), 2)
    if not collective:
        report.stages.append(Stage("collective", Verdict.SKIPPED, "not asked for (--collective)"))
    elif machine.beside_python("msrun") is None:
        report.stages.append(Stage("collective", Verdict.COULD_NOT_RUN, "there is no msrun to start ranks with"))
    else:
        _stage(report, "collective", _collective(machine), RANKS)
    return report


def _stage(report: Report, name: str, findings: list[Finding], compared: int) -> None:
    report.findings += findings
    errors = [found for found in findings if found.severity is Severity.ERROR]
    if errors:
        report.stages.append(Stage(name, Verdict.FAIL, errors[0].message, compared))
    else:
        report.stages.append(Stage(name, Verdict.PASS, f"{compared} checked", compared))


def _versions(machine: Machine) -> dict[str, object]:
    system, processor, python = machine.system()
    facts: dict[str, object] = {"system": f"{system} {processor}", "python": python}
    facts.update({name: machine.version(name) or "not installed" for name in PACKAGES})
    return facts


def _system(machine: Machine) -> list[Finding]:
    system, processor, python = machine.system()
    findings = []
    if system != "Linux" or processor not in ("x86_64", "aarch64"):
        findings.append(finding("C101", f"this is {system} on {processor}"))
    if not python.startswith(f"{PYTHON}."):
        findings.append(finding("C102", f"Python is {python}, expected {PYTHON}"))
    return findings


def _packages(machine: Machine) -> list[Finding]:
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


def _operation(machine: Machine) -> list[Finding]:
    outcome = machine.run([str(machine.python), "-c", OPERATION], OPERATION_TIMEOUT_S)
    if outcome.returncode != 0:
        return [finding("C106", f"a scalar operation, a matmul and a bfloat16 cast: {outcome.reason()}")]
    try:
        result = json.loads(outcome.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return [finding("C106", f"the computation gave no result: {outcome.reason()}")]
    wrong = [name for name, value in EXPECTED.items() if result.get(name) != value]
    return [finding("C106", f"{name} gave {result.get(name)}, expected {EXPECTED[name]}") for name in wrong]


def _msrun(machine: Machine) -> list[Finding]:
    if machine.beside_python("msrun") is None:
        return [finding("C107", f"no msrun in {machine.python.parent}")]
    return []


def _accelerator(machine: Machine) -> list[Finding]:
    if machine.which("npu-smi") is None:
        return [finding("C108", "the CANN toolkit is set up (ASCEND_HOME_PATH), but npu-smi is not on PATH")]
    outcome = machine.run(["npu-smi", "info"], SMI_TIMEOUT_S)
    if outcome.returncode != 0:
        return [finding("C108", f"npu-smi info: {outcome.reason()}")]
    home = machine.environment().get("ASCEND_HOME_PATH")
    if not home or not Path(home).is_dir():
        return [finding("C108", f"npu-smi works, but ASCEND_HOME_PATH is {home!r}")]
    return []


def _collective(machine: Machine) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="msmigrate-doctor-") as folder:
        out = Path(folder)
        command = [
            str(machine.beside_python("msrun")),
            f"--worker_num={RANKS}",
            f"--local_worker_num={RANKS}",
            f"--master_port={_free_port()}",
            f"--log_dir={out / 'log'}",
            "--join=True",
            str(Path(__file__).with_name("collective_worker.py")),
            str(out),
        ]
        # msrun starts the first `python` on PATH, which must be this interpreter.
        path = f"{machine.python.parent}:{machine.environment().get('PATH', '')}"
        outcome = machine.run(command, COLLECTIVE_TIMEOUT_S, {"PATH": path})
        results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("rank*.json"))]
    if outcome.returncode != 0:
        return [finding("C112", f"msrun with {RANKS} ranks: {outcome.reason()}")]
    expected = {"size": RANKS, "sum": [RANKS * (RANKS + 1) / 2] * 3}
    if results != [expected] * RANKS:
        return [finding("C112", f"ranks received {results}, expected {RANKS} times {expected}")]
    return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _major(version: str) -> int:
    return int(version.partition(".")[0])
