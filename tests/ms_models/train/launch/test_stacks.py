"""Ranks that hang answer with their stacks, and a watch names the one that keeps the others waiting."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ms_models.train.launch import stacks
from ms_models.train.launch.failure import Failure
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import Ranks, environment
from ms_models.train.launch.stalls import Limits
from ms_models.train.launch.watching import Watch

pytestmark = pytest.mark.timeout(60)

RANK = """
import sys, time
from pathlib import Path
from ms_models.train import phases
from ms_models.train.launch import stacks, status

def wait_in_a_collective():
    time.sleep(60)

def read_a_dead_disk():
    time.sleep(60)

logs, rank = Path(sys.argv[1]), int(sys.argv[2])
status.report(logs, rank, status.RUNNING)
stacks.answer_requests(logs, rank)
phases.open_record(logs, rank)
for step in (1, 2):
    phases.enter("data", step)
    if step == 2 and rank == 1:
        read_a_dead_disk()
    phases.enter("compute")
    if step == 2:
        wait_in_a_collective()
"""
START = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-m", "hanging_rank", sys.argv[1], str(rank)]) for rank in range(3)]
[rank.wait() for rank in ranks]
"""


def test_the_rank_that_hangs_is_named_with_the_frame_it_stands_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[4]}")
    place = NodePlace(0, 1, 3)
    with Ranks([sys.executable, "-c", START, str(tmp_path)], environment(1, place), place, tmp_path) as ranks:
        failure = Watch(ranks, Peers(), Limits(1.5, 20), float("inf"), lambda: None).until_end()
    assert isinstance(failure, Failure)
    assert (failure.cause, failure.rank) == ("stalled", 1)
    assert "it is in step 2, data, while the others wait in step 2, compute" in failure.message
    assert "hanging_rank.py:11 in read_a_dead_disk" in failure.message
    assert failure.is_restartable
    for rank in range(3):
        assert "Current thread" in (tmp_path / stacks.file_name(rank)).read_text()


def test_a_stopped_process_is_known_by_its_state_and_its_silence(tmp_path: Path) -> None:
    (tmp_path / stacks.file_name(0)).touch()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process.send_signal(19)
        deadline = time.monotonic() + 10
        while psutil.Process(process.pid).status() != "stopped" and time.monotonic() < deadline:
            time.sleep(0.05)
        trace = stacks.collect(tmp_path, {0: process.pid})[0]
        assert trace == stacks.Trace("stopped", ())
        assert trace.last == "no answer to SIGUSR1"
    finally:
        process.kill()
        process.wait()


def test_the_main_thread_is_found_among_others() -> None:
    dump = """Thread 0x01 (most recent call first):
  File "/x/lib/python3.11/threading.py", line 3 in wait

Current thread 0x02 (most recent call first):
  File "/x/site-packages/mindspore/common/api.py", line 40 in run
  File "/y/ms_models/train/step.py", line 9 in step
  File "<frozen runpy>", line 88 in _run_code
"""
    frames = stacks.main_thread(dump)
    assert frames[:2] == ("mindspore/common/api.py:40 in run", "train/step.py:9 in step")
    trace = stacks.Trace("sleeping", frames)
    assert trace.is_waiting
    assert stacks.Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace
    assert stacks.main_thread("") == ()
