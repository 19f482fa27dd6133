"""Starts the ranks of this machine, says how they are, and ends every one of them whatever happens."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from mappings.errors import UserError
from ms_models.train.launch import status
from ms_models.train.launch.failure import Cause, Failure
from ms_models.train.launch.place import NodePlace

MARK = "MSMIGRATE_RANKS"
"""Environment variable that all processes of one attempt on a machine inherit."""
TERM_GRACE_S = 2.0
EXIT_GRACE_S = 30.0
"""How long the launcher may take to end once every rank has finished."""
CLUSTER_TIMEOUT_S = 120
"""How long ranks wait for each other, and for the scheduler, when they open communication."""
EXIT_CODE_S = 2.0
"""How long msrun, which looks once a second, may take to write how a rank died."""
TAIL_LINES = 20
TETHERED = Path(__file__).with_name("tethered.py")
DEAD_WORKER = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")


def worker_log(logs: Path, rank: int) -> Path:
    """Log of a rank; msrun's naming."""
    return logs / f"worker_{rank}.log"


def main_log(logs: Path, place: NodePlace) -> Path:
    """Log of the process that starts the ranks of a machine."""
    if place.world_size == 1:
        return worker_log(logs, 0)
    return logs / ("msrun.log" if place.nodes == 1 else f"msrun_node_{place.node}.log")


def command_line(module: str, arguments: Sequence[str], place: NodePlace, port: int, logs: Path) -> list[str]:
    """How the ranks of a machine are started: the module itself for a world of one, else under `msrun`.

    Args:
        module: to run with `python -m`.
        arguments: of the module.
        place: which ranks.
        port: of MindSpore's scheduler, which runs on the first machine.
        logs: directory of the ranks' logs.
    """
    if place.world_size == 1:
        return [sys.executable, "-m", module, *arguments]
    # msrun starts whatever `python` comes first on PATH; `environment` puts ours there. A worker number that no worker
    # has turns off its copying of the logs to the terminal.
    options = {
        "--worker_num": place.world_size, "--local_worker_num": place.local_size, "--master_addr": place.host,
        "--master_port": port, "--log_dir": logs, "--join": True, "--tail_worker_log": place.world_size,
        "--cluster_time_out": CLUSTER_TIMEOUT_S,
    }  # fmt: skip
    if place.nodes > 1:
        options["--node_rank"] = place.node
    launcher = [sys.executable, "-m", "mindspore.parallel.cluster.run"]
    return [*launcher, *(f"{name}={value}" for name, value in options.items()), "python", "-m", module, *arguments]


def environment(threads: int | None, place: NodePlace) -> dict[str, str]:
    """Environment of the ranks of a machine: this interpreter first on PATH, and the cores shared evenly.

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
        env["OMP_NUM_THREADS"] = str(threads or max(1, (os.cpu_count() or 1) // place.local_size))
    env[status.NODE] = str(place.node)
    for name in ("MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID", "RANK_ID", "RANK_SIZE"):
        env.pop(name, None)  # left over from a launcher this process itself runs under
    return env


class Ranks:
    """The processes of one attempt on this machine. A context manager: none is left after it, however it is left."""

    def __init__(self, command: Sequence[str], env: dict[str, str], place: NodePlace, logs: Path) -> None:
        self.logs, self.place = logs, place
        self._log = main_log(logs, place)
        self._mark = uuid.uuid4().hex
        self._ended_at: float | None = None
        with self._log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the launcher only, which then ends the ranks in order.
            self._main = subprocess.Popen(
                [sys.executable, str(TETHERED), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**env, MARK: self._mark},
                start_new_session=True,
            )
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._remember()
        living = [process for process in self._family.values() if process.is_running()]
        for process in living:
            _signal(process.terminate)
        stubborn = psutil.wait_procs(living, timeout=TERM_GRACE_S)[1]
        self._kill(stubborn)
        self._main.wait()
        self._kill(list(self._marked()))  # started while the others were being ended

    def poll(self) -> Failure | bool:
        """How the processes of this machine are; call it several times a second.

        Returns:
            What went wrong first; or True when every rank finished and its process ended; else False.
        """
        exit_code = self._main.poll()  # before the status files, so that what was written last is seen
        self._remember()
        statuses = self.statuses()
        if failure := self._failure(statuses):
            return failure
        is_finished = len(statuses) == self.place.local_size and all(
            s.state == status.FINISHED for s in statuses.values()
        )
        if exit_code is not None:
            return True if is_finished and exit_code == 0 else self._launcher_failure(exit_code)
        if is_finished:
            self._ended_at = self._ended_at or time.monotonic()
            if time.monotonic() - self._ended_at > EXIT_GRACE_S:
                return self._named(
                    f"every rank finished, but the processes did not end within {EXIT_GRACE_S:.0f} s", "launcher"
                )
        return False

    def statuses(self) -> dict[int, status.Status]:
        """What the ranks of this machine last reported."""
        return status.read_all(self.logs, self.place.ranks)

    def running(self) -> dict[int, int | None]:
        """Ranks of this machine that are not done, and the process of each; None before it has reported."""
        found = self.statuses()
        pids = {rank: found[rank].pid if rank in found else None for rank in self.place.ranks}
        return {rank: pid for rank, pid in pids.items() if pid is None or found[rank].state == status.RUNNING}

    def _failure(self, statuses: dict[int, status.Status]) -> Failure | None:
        failed = sorted((s for s in statuses.values() if s.state == status.FAILED), key=lambda s: s.at)
        if failed and not failed[0].lost:
            first = failed[0]
            return self._named(first.message, first.kind or "defect", first.rank, first.at)
        dead = failed[0].lost if failed else self._dead(statuses)
        if not dead:
            return None
        fresh = self.statuses()
        if not failed and any(one.state == status.FAILED for one in fresh.values()):
            return self._failure(fresh)  # msrun ended the others for it, between the two looks
        # msrun ends the other ranks when it sees the first die.
        pids = {statuses[rank].pid: rank for rank in dead}
        rank = next((pids[pid] for pid in self._exit_codes() if pid in pids), dead[0])
        return self._named(f"died{self._exit_code(statuses[rank].pid)}", "died", rank)

    def _dead(self, statuses: dict[int, status.Status]) -> list[int]:
        gone = status.silently_dead(statuses)
        # One of them may have reported between the two looks.
        return [rank for rank in gone if self.statuses()[rank].state == status.RUNNING]

    def _exit_code(self, pid: int) -> str:
        if pid == self._main.pid:
            code: int | None = self._main.wait()
        else:
            deadline = time.monotonic() + EXIT_CODE_S
            while (code := self._exit_codes().get(pid)) is None and time.monotonic() < deadline:
                if self._main.poll() is not None:
                    break
                time.sleep(EXIT_CODE_S / 10)
        if code is None:
            return ""
        return f" of signal {-code}" if code < 0 else f" with exit code {code}"

    def _exit_codes(self) -> dict[int, int]:
        """What msrun wrote about workers that ended badly, by process number, the first first."""
        return {int(match[1]): int(match[2]) for match in DEAD_WORKER.finditer(_read(self._log))}

    def _launcher_failure(self, exit_code: int) -> Failure:
        return self._named(f"the processes ended with exit code {exit_code} before every rank had finished", "launcher")

    def _named(self, message: str, cause: Cause, rank: int | None = None, at: float | None = None) -> Failure:
        log = self._log if rank is None else worker_log(self.logs, rank)
        node = self.place.node if self.place.nodes > 1 else None
        return Failure(message, rank, cause, _last_lines(_read(log)), node, time.time() if at is None else at)

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # ended meanwhile, or somebody else's

    @staticmethod
    def _kill(processes: list[psutil.Process]) -> None:
        for process in processes:
            _signal(process.kill)
        psutil.wait_procs(processes, timeout=TERM_GRACE_S)

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
