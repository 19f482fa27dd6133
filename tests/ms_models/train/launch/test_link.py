"""Launchers of two machines, with small scripts in the place of ranks: joining, one verdict, loss, and the way back."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappings.errors import UserError
from ms_models.train.config import load
from ms_models.train.launch import attempt, conducting, joining, link, spoke, status, watching
from ms_models.train.launch.attempt import Local
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import environment
from ms_models.train.launch.restarting import RECORD
from ms_models.train.launch.signals import Interrupted, Signals

pytestmark = pytest.mark.timeout(60)

NODE = """
import os, sys, time
from pathlib import Path
from ms_models.train.launch import stacks, status
from ms_models.train.launch.beats import BeatFile
logs, node = Path({logs!r}), int(os.environ["MSMIGRATE_NODE"])
turn = len(list(logs.glob(f"begun_{{node}}_*"))) + 1
(logs / f"begun_{{node}}_{{turn}}").touch()
status.report(logs, node, status.RUNNING)
stacks.answer_requests(logs, node)
beat = BeatFile(logs, node)
for step in range(1, 5):
    beat.enter("data", step)
    time.sleep(0.1)
    {body}
beat.enter("end")
status.report(logs, node, status.FINISHED)
"""


@dataclass
class Machine:
    """A launcher in a thread."""

    node: int
    lines: list[str] = field(default_factory=list)
    result: Any = None
    signals: Signals = field(default_factory=Signals)
    thread: threading.Thread | None = None

    def join(self) -> Any:
        assert self.thread is not None
        self.thread.join(50)
        assert not self.thread.is_alive(), self.lines
        return self.result

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


class Pair:
    """Two machines of one rank each, on two directories that may be one."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = root, monkeypatch
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1] // 2 + 1024
        monkeypatch.setattr(link, "PING_S", 0.2)
        self.connections: list[link.Connection] = []
        monkeypatch.setattr(spoke, "Connection", self._connect)
        monkeypatch.setattr(spoke, "RETRY_S", 0.2)
        monkeypatch.setattr(watching, "SETTLE_S", 0.5)

    def _connect(self, *args: Any) -> link.Connection:
        self.connections.append(link.Connection(*args))
        return self.connections[-1]

    def config(self, node: int, run: str = "run", **launch: Any) -> Any:
        values = {
            "model": {"path": "m"}, "data": {"path": "d"}, "output": {"directory": str(self.root / run)},
            "train": {"steps": 4}, "layout": {"dp": 2},
            "launch": {
                "nodes": 2, "node_rank": node, "master": f"127.0.0.1:{self.port}", "join_s": 20, "link_s": 3,
                "restart_pause_s": 0, **launch,
            },
        }  # fmt: skip
        path = self.root / f"{node}.yaml"
        path.write_text(yaml.safe_dump(values))
        return load(path)

    def begin(
        self, node: int, body: str, run: str = "run", prepare: Callable[[], None] | None = None, **launch: Any
    ) -> Machine:
        config = self.config(node, run, **launch)
        place = NodePlace.of(config.launch, config.layout)
        machine = Machine(node)
        script = NODE.format(logs=str(self.root / run / "logs"), body=body)
        self._patch.setattr(attempt, "command_line", lambda *_: [sys.executable, "-c", self.scripts[_[2].node]])
        self.scripts = {**getattr(self, "scripts", {}), node: script}
        local = Local(
            config, place, environment(1, place), "w", machine.lines.append, None, machine.signals, float("inf")
        )

        def body_of_thread() -> None:
            try:
                if node > 0:
                    machine.result = joining.follow(local)
                    return
                with conducting.meeting(local) as peers:
                    if prepare is not None:
                        prepare()
                    machine.result = conducting.conduct(local, peers, None, None)
            except (UserError, Interrupted) as error:
                machine.result = error

        machine.thread = threading.Thread(target=body_of_thread)
        machine.thread.start()
        return machine

    def both(self, first: str, second: str, **launch: Any) -> tuple[Machine, Machine]:
        machines = self.begin(0, first, **launch), self.begin(1, second, **launch)
        for machine in machines:
            machine.join()
        return machines


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_both_finish(pair: Pair) -> None:
    first, second = pair.both("pass", "pass")
    assert (first.result, second.result) == (0, 0), (first.lines, second.lines)
    assert first.has("node 1 (") and first.has("joined: rank 1")
    merged = (pair.root / "run/logs/merged.log").read_text()
    assert "launcher 0" in merged and "launcher 1" in merged


def test_a_death_on_either_machine_ends_both_and_the_run_is_tried_again(pair: Pair) -> None:
    dies = "step == 2 and turn == 1 and os.kill(os.getpid(), 9)"
    first, second = pair.both("time.sleep(0.1)", dies, restarts=1)
    assert (first.result, second.result) == (0, 0), (first.lines, second.lines)
    for machine in (first, second):
        assert machine.has("failed: rank 1 (node 1): died"), machine.lines
    assert first.has("restart 1 of 1 from the beginning")
    assert '"cause": "died"' in (pair.root / "run" / RECORD).read_text()


def test_without_restarts_both_end_with_the_reason(pair: Pair) -> None:
    first, second = pair.both("os._exit(3)", "time.sleep(30)")
    assert (first.result, second.result) == (1, 1)
    assert second.has("failed: rank 0 (node 0): died with exit code 3")
    pids = [one.pid for one in status.read_all(pair.root / "run/logs").values()]
    assert pids and not any(status.is_alive(pid) for pid in pids), "processes survived"


def test_a_fault_of_the_input_is_the_same_error_on_both(pair: Pair) -> None:
    fault = "status.report(logs, 1, status.FAILED, 'user', 'no such thing'); time.sleep(30)"
    first, second = pair.both("time.sleep(30)", fault, restarts=3)
    assert isinstance(first.result, UserError) and isinstance(second.result, UserError)
    assert str(first.result) == str(second.result) == "rank 1 (node 1): no such thing"


def test_a_rank_that_hangs_on_the_other_machine_is_named(pair: Pair) -> None:
    first, second = pair.both("step == 3 and time.sleep(30)", "step == 2 and time.sleep(30)", stall_s=2)
    assert (first.result, second.result) == (1, 1)
    assert first.has("failed: rank 1 (node 1): hangs") and second.has("failed: rank 1 (node 1): hangs"), first.lines


def test_what_the_machines_do_not_share_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoke, "SHARED_S", 0.3)
    first = pair.begin(0, "pass", stall_s=100.0, join_s=2.5)
    assert "launch.stall_s is 200.0 on node 1 and 100.0 on node 0" in str(
        pair.begin(1, "pass", stall_s=200.0, join_s=2.5).join()
    )
    elsewhere = pair.config(1, "run", stall_s=100.0, join_s=2.5)
    place = NodePlace.of(elsewhere.launch, elsewhere.layout)
    with (
        spoke.Spoke(place, conducting.shared_facts(elsewhere), pair.root / "mine" / "logs", 3) as other,
        pytest.raises(UserError, match="all machines need one shared directory"),
    ):
        other.join(6, lambda: None)
    assert "node 1 did not join" in str(first.join())
    assert "--node-rank 1" in str(first.result)


@pytest.mark.parametrize("error", [None, UserError("no such text")])
def test_the_others_wait_while_the_first_prepares_data(pair: Pair, error: Exception | None) -> None:
    def prepare() -> None:
        time.sleep(2)
        if error is not None:
            raise error

    first, second = pair.begin(0, "pass", prepare=prepare, join_s=1), pair.begin(1, "pass", join_s=1)
    results = [first.join(), second.join()]
    if error is None:
        assert results == [0, 0], (first.lines, second.lines)
    else:
        assert "no such text" in str(results[0]) and "no such text" in str(results[1])


def test_another_program_in_the_place_of_the_master_is_an_error(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", pair.port)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        assert "node 0 did not answer" in str(pair.begin(1, "pass", join_s=1).join())


def test_a_master_that_does_not_answer_is_an_error(pair: Pair) -> None:
    assert "node 0 did not answer" in str(pair.begin(1, "pass", join_s=1).join())


def test_an_interrupted_machine_ends_the_other(pair: Pair) -> None:
    first, second = pair.begin(0, "time.sleep(0.5)"), pair.begin(1, "time.sleep(0.5)")
    wait_for(lambda: (pair.root / "run/logs/begun_1_1").exists())
    second.signals._handle(2, None)  # in this thread; the launcher's finds it noted
    assert isinstance(second.join(), Interrupted)
    assert first.join() == 1
    assert first.has("failed: node 1: interrupted by SIGINT"), first.lines


def test_a_lost_machine_joins_again_and_the_run_goes_on(pair: Pair) -> None:
    slow = "time.sleep(0.5 if turn == 1 else 0)"
    first, second = pair.begin(0, slow, restarts=1), pair.begin(1, slow, restarts=1)
    wait_for(lambda: (pair.root / "run/logs/begun_1_1").exists() and (pair.root / "run/logs/begun_0_1").exists())
    (connection,) = pair.connections
    connection._socket.shutdown(socket.SHUT_RDWR)  # as a network device does that forgets its connections
    assert (first.join(), second.join()) == (0, 0), (first.lines, second.lines)
    # It may be back before its end was seen.
    assert first.has("failed: node 1: lost: its launcher"), first.lines
    assert second.has("failed: node 0: lost: its launcher is gone")
