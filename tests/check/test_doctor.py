"""`doctor` on made-up machines: each fault alone gives its code; and on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from migrate.check.doctor import doctor
from migrate.check.doctor.machine import Machine
from migrate.check.doctor.operation import EXPECTED
from migrate.processes import Outcome, run
from migrate.report import Severity, Verdict
from tests.check.npu_smi_text import npu_smi_text

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
        variables: Mapping[str, str] | None = None,
        device_files: int | None = None,
        memory: int = 64 << 30,
        disk: int = 100 << 30,
        shared: int = 8 << 30,
        files: int = 65536,
        named: bool = True,
        listens: bool = True,
        python_on_path: str = "/opt/env/bin/python",
    ) -> None:
        self._system = system
        self._versions = {**VERSIONS, **(versions or {})}
        self._operation = operation or Outcome(0, json.dumps(EXPECTED), "")
        self._msrun, self._npu_smi, self._ascend_home = msrun, npu_smi, ascend_home
        self._ranks, self._launch = ranks, launch or Outcome(0, "", "")
        self._variables, self._device_files = variables or {}, device_files
        self._memory, self._space, self._files = memory, {".": disk, "/dev/shm": shared}, files
        self._named, self._listens, self._python_on_path = named, listens, python_on_path
        self.commands: list[tuple[Sequence[str], Mapping[str, str] | None]] = []

    def system(self) -> tuple[str, str, str]:
        return self._system

    def version(self, distribution: str) -> str | None:
        return self._versions[distribution]

    def environment(self) -> Mapping[str, str]:
        home = {"ASCEND_HOME_PATH": self._ascend_home} if self._ascend_home else {}
        return {"PATH": "/usr/bin", **home, **self._variables}

    def beside_python(self, program: str) -> Path | None:
        return self.python.parent / program if self._msrun else None

    def which(self, program: str) -> str | None:
        if program == "python":
            return self._python_on_path
        return f"/usr/bin/{program}" if self._npu_smi else None

    def device_files(self) -> int | None:
        return self._device_files

    def available_memory(self) -> int:
        return self._memory

    def free_space(self, path: str) -> int | None:
        return self._space[path]

    def open_files(self) -> int:
        return self._files

    def resolves(self, name: str) -> bool:
        return self._named

    def can_listen(self) -> bool:
        return self._listens

    def interfaces(self) -> dict[str, list[str]]:
        return {"lo": ["127.0.0.1"], "eth0": ["10.0.0.5"]}

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


SMI = Outcome(0, npu_smi_text(), "")
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
    "another python": ({"python_on_path": "/usr/bin/python"}, "C114"),
    "little memory": ({"memory": 1 << 30}, "C125"),
    "little disk": ({"disk": 1 << 30}, "C126"),
    "a container's shared memory": ({"shared": 64 << 20}, "C127"),
    "few files": ({"files": 256}, "C128"),
    "no name": ({"named": False}, "C129"),
    "no port": ({"listens": False}, "C130"),
    "a launcher's variables": ({"variables": {"MS_ROLE": "MS_WORKER", "RANK_ID": "1"}}, "C122"),
    "simulation": ({"variables": {"MS_SIMULATION_LEVEL": "1"}}, "C122"),
    "rank table": ({"variables": {"RANK_TABLE_FILE": "/tmp/none.json"}}, "C123"),
    "no such interface": ({"variables": {"HCCL_SOCKET_IFNAME": "bond0,ib"}}, "C124"),
    "not exactly that interface": ({"variables": {"HCCL_SOCKET_IFNAME": "=eth"}}, "C124"),
    "no such address": ({"variables": {"HCCL_IF_IP": "10.0.0.6"}}, "C124"),
}


NPU_FAULTS: dict[str, tuple[dict[str, object], str]] = {
    "no device": ({"npu_smi": Outcome(0, "+---+", "")}, "C108"),
    "unhealthy": ({"npu_smi": Outcome(0, npu_smi_text(health={1: "Warning"}), "")}, "C115"),
    "hot": ({"npu_smi": Outcome(0, npu_smi_text(temperature=91), "")}, "C116"),
    "memory in use": ({"npu_smi": Outcome(0, npu_smi_text(used=30000), "")}, "C117"),
    "a process": ({"npu_smi": Outcome(0, npu_smi_text(processes=[(0, 0, 4711, "python", 800)]), "")}, "C117"),
    "no such visible device": ({"variables": {"ASCEND_RT_VISIBLE_DEVICES": "0,7"}}, "C118"),
    "visible twice": ({"variables": {"ASCEND_RT_VISIBLE_DEVICES": "1,1"}}, "C118"),
    "visible nonsense": ({"variables": {"ASCEND_RT_VISIBLE_DEVICES": "all"}}, "C118"),
    "a container with one": ({"device_files": 1}, "C118"),
    "no version of cann": ({"cann": None}, "C119"),
    "old cann": ({"cann": "8.0.RC3"}, "C120"),
    "old driver": ({"npu_smi": Outcome(0, npu_smi_text(driver="25.2.0"), "")}, "C121"),
}


def toolkit(home: Path, cann: str | None) -> str:
    """A toolkit directory with the version file of its compiler."""
    home.mkdir(exist_ok=True)
    if cann is not None:
        (home / "compiler").mkdir(exist_ok=True)
        (home / "compiler" / "version.info").write_text(f"Version={cann}\nversion_dir={cann}\n")
    return str(home)


@pytest.mark.parametrize("name", NPU_FAULTS)
def test_a_fault_of_an_ascend_machine_gives_its_code(name: str, tmp_path: Path) -> None:
    changes, code = NPU_FAULTS[name]
    settings = {"npu_smi": SMI, **changes}
    home = toolkit(tmp_path / "cann", settings.pop("cann", "8.5.0"))  # type: ignore[arg-type]
    report = doctor(machine=FakeMachine(ascend_home=home, **settings))  # type: ignore[arg-type]
    assert {finding.code for finding in report.findings} == {code}, report.findings
    assert report.exit_code == 1


def test_visible_devices_and_interfaces_that_exist_are_fine(tmp_path: Path) -> None:
    variables = {"ASCEND_RT_VISIBLE_DEVICES": "1, 0", "HCCL_SOCKET_IFNAME": "eth", "HCCL_IF_IP": "10.0.0.5"}
    home = toolkit(tmp_path, "8.5.0")
    machine = FakeMachine(npu_smi=SMI, ascend_home=home, variables=variables, device_files=2)
    assert doctor(machine=machine).findings == []
    assert doctor(machine=FakeMachine(variables={"HCCL_SOCKET_IFNAME": "^docker"})).findings == []


def test_a_healthy_machine_is_clean() -> None:
    report = doctor(machine=FakeMachine())
    assert report.findings == []
    assert report.exit_code == 0
    assert {s.name for s in report.stages if s.verdict is Verdict.PASS} == {
        "system",
        "packages",
        "host",
        "minimal computation",
        "msrun",
        "environment",
    }
    assert report.facts["numpy"] == "1.26.4"


def test_a_healthy_ascend_machine_is_clean(tmp_path: Path) -> None:
    report = doctor(machine=FakeMachine(npu_smi=SMI, ascend_home=toolkit(tmp_path, "8.5.0")))
    assert report.findings == []
    assert (report.facts["cann"], report.facts["driver"]) == ("8.5.0", "25.5.0")
    assert report.facts["devices"] == ["NPU 0: 910B3 65536 MiB", "NPU 1: 910B3 65536 MiB"]
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
    assert Path(command[-2]).is_file(), "the script of the ranks"
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
