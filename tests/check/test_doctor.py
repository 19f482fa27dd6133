"""`doctor` on made-up machines: each fault alone gives its code; and on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from migrate.check.doctor import EXPECTED, doctor
from migrate.check.machine import Machine
from migrate.processes import Outcome, run
from migrate.report import Severity, Verdict

VERSIONS = {
    "mindspore": "2.10.0",
    "numpy": "1.26.4",
    "transformers": "5.24.0",
    "tokenizers": "0.23.3",
    "torch": "2.13.0",
    "safetensors": "0.8.0",
    "libcst": "1.9.0",
}


class FakeMachine(Machine):
    """A healthy CPU machine, or one with a single thing changed."""

    python = Path("/opt/env/bin/python")

    def __init__(
        self,
        *,
        system: tuple[str, str, str] = ("Linux", "x86_64", "3.11.7"),
        versions: Mapping[str, str | None] | None = None,
        operation: Outcome | None = None,
        msrun: bool = True,
        npu_smi: Outcome | None = None,
        ascend_home: str | None = None,
        ranks: Sequence[object] = ({"size": 2, "sum": [3.0, 3.0, 3.0]},) * 2,
        launch: Outcome | None = None,
    ) -> None:
        self._system = system
        self._versions = {**VERSIONS, **(versions or {})}
        self._operation = operation or Outcome(0, json.dumps(EXPECTED), "")
        self._msrun, self._npu_smi, self._ascend_home = msrun, npu_smi, ascend_home
        self._ranks, self._launch = ranks, launch or Outcome(0, "", "")
        self.commands: list[tuple[Sequence[str], Mapping[str, str] | None]] = []

    def system(self) -> tuple[str, str, str]:
        return self._system

    def version(self, distribution: str) -> str | None:
        return self._versions[distribution]

    def environment(self) -> Mapping[str, str]:
        return {"PATH": "/usr/bin", **({"ASCEND_HOME_PATH": self._ascend_home} if self._ascend_home else {})}

    def beside_python(self, program: str) -> Path | None:
        return self.python.parent / program if self._msrun else None

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if self._npu_smi else None

    def run(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
        self.commands.append((command, environment))
        if command[0] == "npu-smi":
            assert self._npu_smi is not None
            return self._npu_smi
        if command[0].endswith("msrun"):
            for index, result in enumerate(self._ranks):
                (Path(command[-1]) / f"rank{index}.json").write_text(json.dumps(result))
            return self._launch
        return self._operation


SMI = Outcome(0, "+---+", "")
NUMPY_2 = Outcome(1, "", "Traceback ...\nSystemError: numpy.core.multiarray failed to import\n")
FAULTS = {
    "mac": ({"system": ("Darwin", "arm64", "3.11.7")}, "C101"),
    "python 3.12": ({"system": ("Linux", "aarch64", "3.12.1")}, "C102"),
    "python 3.110": ({"system": ("Linux", "x86_64", "3.110.0")}, "C102"),
    "numpy 2": ({"versions": {"numpy": "2.1.0"}}, "C103"),
    "no numpy": ({"versions": {"numpy": None}}, "C103"),
    "no mindspore": ({"versions": {"mindspore": None}}, "C104"),
    "mindspore 2.9": ({"versions": {"mindspore": "2.9.0"}}, "C105"),
    "operation dies": ({"operation": NUMPY_2}, "C106"),
    "operation hangs": ({"operation": Outcome(None, "", "")}, "C106"),
    "operation killed": ({"operation": Outcome(-8, "", "")}, "C106"),
    "operation says nothing": ({"operation": Outcome(0, "", "")}, "C106"),
    "operation is wrong": ({"operation": Outcome(0, json.dumps({**EXPECTED, "scalar": 35.0}), "")}, "C106"),
    "no msrun": ({"msrun": False}, "C107"),
    "cann without driver": ({"ascend_home": "/tmp"}, "C108"),
    "driver without cann": ({"npu_smi": SMI}, "C108"),
    "driver without device": ({"npu_smi": Outcome(1, "", "dcmi init failed"), "ascend_home": "/tmp"}, "C108"),
    "no torch": ({"versions": {"torch": None}}, "C109"),
    "no transformers": ({"versions": {"transformers": None}}, "C110"),
    "transformers 4": ({"versions": {"transformers": "4.57.1"}}, "C111"),
    "no tokenizers": ({"versions": {"tokenizers": None}}, "C113"),
}


def test_a_healthy_machine_is_clean() -> None:
    report = doctor(machine=FakeMachine())
    assert report.findings == []
    assert report.exit_code == 0
    assert {s.name for s in report.stages if s.verdict is Verdict.PASS} == {
        "system",
        "packages",
        "minimal computation",
        "msrun",
    }
    assert report.facts["numpy"] == "1.26.4"


def test_a_healthy_ascend_machine_is_clean(tmp_path: Path) -> None:
    report = doctor(machine=FakeMachine(npu_smi=SMI, ascend_home=str(tmp_path)))
    assert report.findings == []
    assert {s.name: s.verdict for s in report.stages}["accelerator"] is Verdict.PASS


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gives_its_code_and_advice(name: str) -> None:
    settings, code = FAULTS[name]
    report = doctor(machine=FakeMachine(**settings))  # type: ignore[arg-type]
    assert [finding.code for finding in report.findings] == [code]
    (found,) = report.findings
    assert found.why and found.fix
    assert report.exit_code == (0 if found.severity is Severity.NOTE else 1)
    failed = [stage for stage in report.stages if stage.verdict is Verdict.FAIL]
    assert bool(failed) == (found.severity is Severity.ERROR)


def test_the_reason_of_a_dead_computation_is_told() -> None:
    (found,) = doctor(machine=FakeMachine(operation=NUMPY_2)).findings
    assert "numpy.core.multiarray failed to import" in found.message


def test_the_collective_uses_this_interpreter_and_judges_the_sum() -> None:
    machine = FakeMachine()
    report = doctor(collective=True, machine=machine)
    assert report.exit_code == 0
    command, environment = machine.commands[-1]
    assert command[0] == "/opt/env/bin/msrun"
    assert environment == {"PATH": "/opt/env/bin:/usr/bin"}


@pytest.mark.parametrize(
    "settings",
    [
        {"launch": Outcome(None, "", "")},
        {"launch": Outcome(1, "", "connection refused")},
        {"ranks": [{"size": 2, "sum": [3.0, 3.0, 3.0]}]},
        {"ranks": [{"size": 2, "sum": [1.0, 1.0, 1.0]}, {"size": 2, "sum": [2.0, 2.0, 2.0]}]},
        {"ranks": [{"size": 1, "sum": [1.0, 1.0, 1.0]}] * 2},
    ],
    ids=["hangs", "fails", "a rank is silent", "nothing was summed", "two worlds of one"],
)
def test_a_bad_collective_is_found(settings: dict[str, object]) -> None:
    report = doctor(collective=True, machine=FakeMachine(**settings))  # type: ignore[arg-type]
    assert [finding.code for finding in report.findings] == ["C112"]
    assert report.exit_code == 1


def test_a_collective_without_msrun_could_not_run() -> None:
    report = doctor(collective=True, machine=FakeMachine(msrun=False))
    assert report.exit_code == 2


def test_this_machine_computes_and_mindspore_stays_outside() -> None:
    program = (
        "import sys; from migrate.check.doctor import doctor; report = doctor();"
        "assert 'mindspore' not in sys.modules; print(report.to_json())"
    )
    outcome = run([sys.executable, "-c", program], 120)
    assert outcome.returncode == 0, outcome.reason()
    report = json.loads(outcome.stdout)
    verdicts = {stage["name"]: stage["verdict"] for stage in report["stages"]}
    assert verdicts["minimal computation"] == "pass"
    assert verdicts["msrun"] == "pass"


@pytest.mark.multi_process
@pytest.mark.timeout(240)
def test_two_ranks_all_reduce_and_leave_no_process() -> None:
    report = doctor(collective=True)
    assert {s.name: s.verdict for s in report.stages}["collective"] is Verdict.PASS, report.stages
    mine = psutil.Process().children(recursive=True)
    assert [child for child in mine if child.status() != psutil.STATUS_ZOMBIE] == []


def test_a_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    child = "import os, time, sys; open(sys.argv[1], 'a').write(f'{os.getpid()} '); time.sleep(60)"
    # The grandchild has a session of its own, as msrun's workers may.
    call = f"[sys.executable, '-c', {child!r}, sys.argv[1]], start_new_session=True"
    parent = f"import subprocess, sys; subprocess.run({call})"
    outcome = run([sys.executable, "-c", parent, str(pids)], 2.0)
    assert outcome.returncode is None
    (pid,) = map(int, pids.read_text().split())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_environment_of_a_command_is_extended() -> None:
    program = "import os; print(os.environ['EXTRA'], len(os.environ))"
    outcome = run([sys.executable, "-c", program], 30, {"EXTRA": "yes"})
    assert outcome.stdout.split()[0] == "yes"
    assert int(outcome.stdout.split()[1]) > len(os.environ) // 2
