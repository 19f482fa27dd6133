"""Launches a worker script on several ranks of this machine and brings back what each rank reports.

The worker wraps its work in `report`, which writes one JSON file per rank. The launcher returns those and msrun's exit
code; a test must look at both. Whatever happens, no process of the launch survives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

FOLDER_VARIABLE = "MSMIGRATE_TEST_REPORTS"
LAUNCH_VARIABLE = "MSMIGRATE_TEST_LAUNCH"
MODULES = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "shared")]  # what workers import
GRACE = 10  # seconds the other ranks get after one has failed, before they are ended


@dataclass(frozen=True)
class Launch:
    """End of a launch."""

    exit_code: int | None
    """msrun's; None if the launch was ended after its timeout or after a rank failed."""
    ranks: dict[int, Any]
    """What `report` wrote, by rank."""
    errors: dict[int, str]
    """Tracebacks of failed ranks."""
    logs: str
    """Last lines of every rank's log."""

    def check(self, ranks: int) -> None:
        """Asserts that all ranks reported and that everything ended well."""
        assert not self.errors, "\n".join(f"rank {rank}: {text}" for rank, text in self.errors.items())
        assert self.exit_code == 0, f"exit code {self.exit_code}\n{self.logs}"
        assert sorted(self.ranks) == list(range(ranks)), f"ranks {sorted(self.ranks)} reported\n{self.logs}"


def launch(script: Path, ranks: int, folder: Path, *arguments: str, timeout: float = 300) -> Launch:
    """Runs `script` on `ranks` processes under the calling interpreter.

    Args:
        script: worker that calls `report`.
        ranks: number of processes.
        folder: empty or new; takes logs and reports.
        arguments: passed on to the script.
        timeout: seconds until everything is ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bin_folder = Path(sys.executable).parent
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    environment = {
        **os.environ,
        # msrun runs whatever `python` is first on PATH
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([*MODULES, os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        FOLDER_VARIABLE: str(folder),
        LAUNCH_VARIABLE: mark,
    }
    command = [str(bin_folder / "msrun"), "--worker_num", str(ranks), "--local_worker_num", str(ranks)]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(free_port()), "--log_dir", str(folder / "logs")]
    command += ["--join", "True", str(script), *arguments]
    with (folder / "msrun.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        try:
            exit_code = _wait(process, folder, time.monotonic() + timeout)
        finally:
            end_launch(process, mark)
    reports = {int(path.stem[4:]): json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))}
    return Launch(
        exit_code=exit_code,
        ranks={rank: body["result"] for rank, body in reports.items() if "result" in body},
        errors={rank: body["error"] for rank, body in reports.items() if "error" in body},
        logs=tails(folder),
    )


def _wait(process: subprocess.Popen[bytes], folder: Path, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.5)
        # A failed rank leaves the others waiting in a collective for minutes.
        if any("error" in json.loads(path.read_text()) for path in folder.glob("rank*.json")):
            deadline = min(deadline, time.monotonic() + GRACE)
    return None


def end_launch(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kills msrun and every process that inherited the mark of the launch, and waits until they are gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = survivors(mark)
    for worker in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(left, timeout=30)
    assert not survivors(mark), f"processes survived the launch: {survivors(mark)}"


def survivors(mark: str) -> list[psutil.Process]:
    """Running processes that belong to a launch, by the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get(LAUNCH_VARIABLE) == mark:
                found.append(process)
    return found


def tails(folder: Path, lines: int = 20) -> str:
    """The last lines of every log of a launch."""
    texts = []
    for path in [folder / "msrun.log", *sorted((folder / "logs").glob("*.log"))]:
        if path.is_file():
            end = path.read_text(errors="replace").splitlines()[-lines:]
            texts.append("\n".join([f"--- {path.name}", *end]))
    return "\n".join(texts)


def free_port() -> int:
    """A TCP port nobody listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def report(work: Callable[[], Any]) -> None:
    """In a worker: runs `work` and writes its result, or its traceback, as this rank's JSON report.

    msrun runs the script once more as the scheduler, which only opens communication.

    Args:
        work: returns something JSON can hold.
    """
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        from mindspore.communication import init

        init()
        return
    path = Path(os.environ[FOLDER_VARIABLE]) / f"rank{int(os.environ['RANK_ID'])}.json"
    try:
        write_report(path, {"result": work()})
    except BaseException:
        write_report(path, {"error": traceback.format_exc()})
        raise


def write_report(path: Path, body: dict[str, Any]) -> None:
    """Writes a report so that the launcher sees all of it or nothing."""
    staging = path.with_suffix(".tmp")
    staging.write_text(json.dumps(body))
    staging.replace(path)
