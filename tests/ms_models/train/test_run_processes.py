"""Starting, watching and ending processes, with small scripts in the place of training."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mappings.errors import UserError
from ms_models.train.launch import processes, status
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import Ranks, command_line, environment
from ms_models.train.launch.stalls import Limits
from ms_models.train.launch.watching import Watch

pytestmark = pytest.mark.timeout(60)

RANK = """
import os, subprocess, sys, time
from pathlib import Path
from ms_models.train.launch import status
logs = Path({logs!r})
"""


def start(tmp_path: Path, body: str, world: int = 1) -> Ranks:
    script = tmp_path / "script.py"
    script.write_text(RANK.format(logs=str(tmp_path)) + textwrap.dedent(body))
    place = NodePlace(0, 1, world)
    return Ranks([sys.executable, str(script)], environment(1, place), place, tmp_path)


def until_end(
    ranks: Ranks, timeout_s: float = 30, stall_s: float = 0, tick: Callable[[], None] = lambda: None
) -> Failure | None:
    return Watch(ranks, Peers(), Limits(stall_s, stall_s), time.monotonic() + timeout_s, tick).until_end()


def watch(tmp_path: Path, body: str, world: int = 1, timeout_s: float = 30, stall_s: float = 0) -> Failure | None:
    with start(tmp_path, body, world) as ranks:
        return until_end(ranks, timeout_s, stall_s)


def test_all_ranks_finishing_is_success(tmp_path: Path) -> None:
    body = "for rank in range(2): status.report(logs, rank, status.RUNNING); status.report(logs, rank, status.FINISHED)"
    assert watch(tmp_path, body, world=2) is None


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("sys.exit(3)", "died with exit code 3"),
        ("os.kill(os.getpid(), 9)", "died of signal 9"),
        ("sys.exit(0)", "died with exit code 0"),  # without having finished
    ],
)
def test_a_dead_rank_is_named_with_the_end_of_its_log(tmp_path: Path, ending: str, expected: str) -> None:
    body = f"status.report(logs, 0, status.RUNNING); print('last words', flush=True); time.sleep(0.5); {ending}"
    failure = watch(tmp_path, body)
    assert failure is not None
    assert (failure.rank, failure.message) == (0, expected)
    assert failure.tail.endswith("last words")


def test_the_first_of_several_failures_is_the_reason(tmp_path: Path) -> None:
    body = """
    status.Status(0, os.getpid(), status.FAILED, 200.0, "defect", "second").write(logs)
    status.Status(1, os.getpid(), status.FAILED, 100.0, "user", "first").write(logs)
    time.sleep(60)
    """
    failure = watch(tmp_path, body, world=2)
    assert failure is not None
    assert (failure.rank, failure.cause, failure.message) == (1, "user", "first")


def test_the_death_of_a_rank_is_the_reason_and_not_what_another_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "EXIT_CODE_S", 0.1)  # nobody here is msrun
    body = """
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    status.Status(1, killed.pid, status.RUNNING, 1.0).write(logs)
    status.report(logs, 0, status.RUNNING)
    killed.kill()
    status.report(logs, 0, status.FAILED, "defect", "connection lost")
    time.sleep(60)
    """
    failure = watch(tmp_path, body, world=2)
    assert failure is not None
    assert (failure.rank, failure.message) == (1, "died")
    own_fault = body.replace("    killed.kill()\n", "")
    status.clear(tmp_path)
    failure = watch(tmp_path, own_fault, world=2)
    assert failure is not None
    assert (failure.rank, failure.message) == (0, "connection lost")


def test_a_rank_that_was_ended_for_the_failure_of_another_is_not_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    status.Status(1, child.pid, status.RUNNING, 1.0).write(logs)
    status.report(logs, 0, status.RUNNING)
    time.sleep(60)
    """
    true_dead = Ranks._dead

    def fails_meanwhile(self: Ranks, statuses: dict[int, status.Status]) -> list[int]:
        dead = true_dead(self, statuses)
        if dead:
            status.Status(0, statuses[0].pid, status.FAILED, 2.0, "user", "no such thing").write(tmp_path)
        return dead

    monkeypatch.setattr(Ranks, "_dead", fails_meanwhile)
    failure = watch(tmp_path, body, world=2)
    assert failure is not None
    assert (failure.rank, failure.cause) == (0, "user")


def test_of_several_dead_ranks_the_one_that_the_launcher_saw_first_is_the_reason(tmp_path: Path) -> None:
    body = """
    children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    for child in children:
        child.kill()
        child.wait()
    (logs / "msrun.log").write_text(f"Worker process {children[1].pid} exit with exception. Error code: -9.")
    for rank, child in enumerate(children):
        status.Status(rank, child.pid, status.RUNNING, 1.0).write(logs)
    time.sleep(60)
    """
    # The launcher is late: both are dead when it looks.
    with start(tmp_path, body, world=2) as ranks:
        deadline = time.monotonic() + 20
        while len(status.read_all(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        failure = until_end(ranks)
    assert failure is not None
    assert (failure.rank, failure.message) == (1, "died of signal 9")


def test_an_exit_before_any_rank_reported_shows_the_launchers_output(tmp_path: Path) -> None:
    failure = watch(tmp_path, "print('cannot start'); sys.exit(5)", world=2)
    assert failure is not None
    assert failure.rank is None
    assert "exit code 5" in failure.message
    assert "cannot start" in failure.tail


def test_the_limits_of_time_are_kept(tmp_path: Path) -> None:
    sleeping = "status.report(logs, 0, status.RUNNING); time.sleep(60)"
    failure = watch(tmp_path, sleeping, timeout_s=1)
    assert failure is not None
    assert (failure.cause, failure.message) == ("timeout", "launch.timeout_s: not finished in time")
    alive = """
    from ms_models.train.launch.beats import BeatFile
    status.report(logs, 0, status.RUNNING)
    beat = BeatFile(logs, 0)
    for step in range(20):
        time.sleep(0.1)
        beat.enter("data", step)
    status.report(logs, 0, status.FINISHED)
    """
    status.clear(tmp_path)
    assert watch(tmp_path, alive, stall_s=1.5) is None


def test_no_descendant_survives_whatever_session_it_is_in(tmp_path: Path) -> None:
    body = """
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
    (logs / "child").write_text(str(child.pid))
    time.sleep(60)
    """

    class Stop(Exception):
        pass

    def stop_when_child_runs() -> None:
        if (tmp_path / "child").is_file() and time.time() > (tmp_path / "child").stat().st_mtime + 1:
            raise Stop

    with pytest.raises(Stop), start(tmp_path, body) as ranks:
        until_end(ranks, tick=stop_when_child_runs)
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]


def test_one_rank_needs_no_msrun_and_several_get_this_interpreter(tmp_path: Path) -> None:
    assert command_line("m", ["c"], NodePlace(0, 1, 1), 1, tmp_path) == [sys.executable, "-m", "m", "c"]
    several = command_line("m", ["c"], NodePlace(0, 1, 4), 1, tmp_path)
    assert several[0] == sys.executable
    assert "--worker_num=4" in several
    assert several[-4:] == ["python", "-m", "m", "c"]
    folder, *_ = environment(None, NodePlace(0, 1, 2))["PATH"].split(os.pathsep)
    assert Path(folder) == Path(sys.executable).parent


def test_threads_are_shared_unless_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(None, NodePlace(0, 1, 2))["OMP_NUM_THREADS"] == "4"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(None, NodePlace(0, 1, 2))["OMP_NUM_THREADS"] == "3"
    assert environment(1, NodePlace(0, 1, 2))["OMP_NUM_THREADS"] == "1"


def test_an_interpreter_that_msrun_cannot_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3.11"))
    with pytest.raises(UserError, match="run from a virtual environment"):
        environment(None, NodePlace(0, 1, 1))


def test_exit_code_of_a_rank_is_read_from_msruns_log(tmp_path: Path) -> None:
    line = "[ERROR] ME(1:2,MainProcess): Worker process 77 exit with exception. Error code: -9."
    assert processes.DEAD_WORKER.search(line).groups() == ("77", "-9")  # type: ignore[union-attr]


def test_the_launcher_does_not_load_mindspore() -> None:
    # It would hold half a gigabyte for the whole run, and every check would take seconds longer.
    code = "import sys, ms_models.train.launch, ms_models.train.worker; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_process_that_was_started_while_the_others_were_ended_is_ended_too(tmp_path: Path) -> None:
    body = """
    import signal

    def leave_one_behind(*_):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        (logs / "child").write_text(str(child.pid))
        os._exit(1)

    signal.signal(signal.SIGTERM, leave_one_behind)
    (logs / "ready").touch()
    time.sleep(60)
    """

    class Stop(Exception):
        pass

    def stop_when_ready() -> None:
        if (tmp_path / "ready").is_file():
            raise Stop

    with pytest.raises(Stop), start(tmp_path, body) as ranks:
        until_end(ranks, tick=stop_when_ready)
    assert not status.is_alive(int((tmp_path / "child").read_text()))
