"""Starts the ranks of a run, watches them, and ends every one of them whatever happens."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from mappings.errors import UserError
from ms_models.train.launch import status

POLL_S = 0.2
TERM_GRACE_S = 2.0
EXIT_GRACE_S = 30.0
"""How long the launcher may take to end once every rank has finished."""
TAIL_LINES = 20
MSRUN_LOG = "msrun.log"
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, because a forked child must not load anything
DEAD_WORKER = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")


@dataclass(frozen=True)
class Failure:
    """Why a run ended early."""

    message: str
    rank: int | None = None
    kind: status.Kind = "run"
    tail: str = ""
    """The end of the failing rank's log."""


def worker_log(logs: Path, rank: int) -> Path:
    """Log of a rank; msrun's naming."""
    return logs / f"worker_{rank}.log"


def command_line(module: str, arguments: Sequence[str], world_size: int, logs: Path) -> list[str]:
    """How the ranks are started: the module itself for one rank, under `msrun` for several."""
    if world_size == 1:
        return [sys.executable, "-m", module, *arguments]
    # msrun starts whatever `python` comes first on PATH; `environment` puts ours there. A worker number that no worker
    # has turns off its copying of the logs to the terminal.
    options = {
        "--worker_num": world_size, "--local_worker_num": world_size, "--master_port": free_port(),
        "--log_dir": logs, "--join": True, "--tail_worker_log": world_size, "--cluster_time_out": 120,
    }  # fmt: skip
    launcher = [sys.executable, "-m", "mindspore.parallel.cluster.run"]
    return [*launcher, *(f"{name}={value}" for name, value in options.items()), "python", "-m", module, *arguments]


def environment(threads: int | None, world_size: int) -> dict[str, str]:
    """Environment of the ranks: this interpreter first on PATH, and the cores shared evenly.

    Raises:
        UserError: the interpreter's directory has no `python`, which msrun would start.
    """
    folder = Path(sys.executable).parent
    if shutil.which("python", path=str(folder)) is None:
        raise UserError(f"{folder}: has no `python` beside {Path(sys.executable).name}; run from a virtual environment")
    env = dict(os.environ)
    env["PATH"] = f"{folder}{os.pathsep}{env.get('PATH', '')}"
    env["PYTHONUNBUFFERED"] = "1"
    if threads is not None or "OMP_NUM_THREADS" not in env:
        env["OMP_NUM_THREADS"] = str(threads or max(1, (os.cpu_count() or 1) // world_size))
    for name in ("MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID", "RANK_ID", "RANK_SIZE"):
        env.pop(name, None)  # left over from a launcher this process itself runs under
    return env


def free_port() -> int:
    """A TCP port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """Has Linux end this process when its parent dies, so that not even a killed launcher leaves ranks behind."""
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Ranks:
    """The processes of one run. A context manager: no process is left after it, however it is left."""

    def __init__(self, command: Sequence[str], env: dict[str, str], world_size: int, logs: Path) -> None:
        self.logs, self.world_size = logs, world_size
        self._log = worker_log(logs, 0) if world_size == 1 else logs / MSRUN_LOG
        with self._log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the launcher only, which then ends the ranks in order.
            self._main = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env,
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._remember()
        living = [process for process in self._family.values() if process.is_running()]
        for process in living:
            _signal(process.terminate)
        stubborn = psutil.wait_procs(living, timeout=TERM_GRACE_S)[1]
        for process in stubborn:
            _signal(process.kill)
        psutil.wait_procs(stubborn, timeout=TERM_GRACE_S)
        self._main.wait()

    def watch(self, timeout_s: float, stall_s: float, tick: Callable[[], None]) -> Failure | None:
        """Waits for the end; `tick` is called several times a second.

        Args:
            timeout_s: limit for the whole run; 0 for none.
            stall_s: limit between two signs of life of any rank; 0 for none.
            tick: what to do meanwhile.

        Returns:
            None when every rank finished, else what went wrong first.
        """
        start = time.time()
        ended: float | None = None
        while True:
            exit_code = self._main.poll()  # before the status files, so that what was written last is seen
            self._remember()
            statuses = status.read_all(self.logs)
            tick()
            if failure := self._failure(statuses):
                return failure
            is_finished = len(statuses) == self.world_size and all(
                s.state == status.FINISHED for s in statuses.values()
            )
            if exit_code is not None:
                return None if is_finished and exit_code == 0 else self._launcher_failure(exit_code)
            if is_finished:
                ended = ended or time.time()
                if time.time() - ended > EXIT_GRACE_S:
                    return Failure(f"every rank finished, but the processes did not end within {EXIT_GRACE_S:.0f} s")
            if timeout_s and time.time() - start > timeout_s:
                return Failure(f"launch.timeout_s: not finished after {timeout_s:g} s")
            if stall_s and time.time() - max(start, self._last_sign()) > stall_s:
                return Failure(
                    f"launch.stall_s: no rank reported anything for {stall_s:g} s; see the logs in {self.logs}"
                )
            time.sleep(POLL_S)

    def _failure(self, statuses: dict[int, status.Status]) -> Failure | None:
        failed = sorted((s for s in statuses.values() if s.state == status.FAILED), key=lambda s: s.at)
        if failed and not failed[0].lost:
            first = failed[0]
            return Failure(first.message, first.rank, first.kind or "defect", self._tail(first.rank))
        dead = failed[0].lost if failed else self._dead(statuses)
        if not dead:
            return None
        # msrun ends the other ranks when it sees the first die.
        pids = {statuses[rank].pid: rank for rank in dead}
        rank = next((pids[pid] for pid in self._exit_codes() if pid in pids), dead[0])
        return Failure(f"died{self._exit_code(statuses[rank].pid)}", rank, "run", self._tail(rank))

    def _dead(self, statuses: dict[int, status.Status]) -> list[int]:
        gone = status.silently_dead(statuses)
        # One of them may have reported between the two looks.
        return [rank for rank in gone if status.read_all(self.logs)[rank].state == status.RUNNING]

    def _exit_code(self, pid: int) -> str:
        if pid == self._main.pid:
            code: int | None = self._main.wait()
        else:
            code = self._exit_codes().get(pid)
        if code is None:
            return ""
        return f" of signal {-code}" if code < 0 else f" with exit code {code}"

    def _exit_codes(self) -> dict[int, int]:
        """What msrun wrote about workers that ended badly, by process number, the first first."""
        return {int(match[1]): int(match[2]) for match in DEAD_WORKER.finditer(_read(self._log))}

    def _launcher_failure(self, exit_code: int) -> Failure:
        return Failure(
            f"the processes ended with exit code {exit_code} before every rank had finished",
            tail=_last_lines(_read(self._log)),
        )

    def _tail(self, rank: int) -> str:
        return _last_lines(_read(worker_log(self.logs, rank)))

    def _last_sign(self) -> float:
        return max((path.stat().st_mtime for path in self.logs.glob("rank_*.json")), default=0.0)

    def _remember(self) -> None:
        # Workers are in sessions of their own and outlive msrun, so their family tree is noted while it stands.
        try:
            main = psutil.Process(self._main.pid)
            for process in (main, *main.children(recursive=True)):
                self._family.setdefault(process.pid, process)
        except psutil.NoSuchProcess:
            return


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _last_lines(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-TAIL_LINES:])
