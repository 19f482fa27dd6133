"""Attempts on one machine, with a small script in the place of the only rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappings.errors import UserError
from ms_models.train.config import load
from ms_models.train.launch import attempt, conducting
from ms_models.train.launch.attempt import Local
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.place import NodePlace
from ms_models.train.launch.processes import environment
from ms_models.train.launch.signals import Signals

pytestmark = pytest.mark.timeout(60)

RANK = """
import os, sys, time
from pathlib import Path
from ms_models.train.launch import status
from ms_models.train.launch.beats import BeatFile
logs = Path({logs!r})
tries = logs / "tries"
turn = len(tries.read_text()) + 1 if tries.is_file() else 1
tries.write_text("x" * turn)
status.report(logs, 0, status.RUNNING)
beat = BeatFile(logs, 0)
print("turn", turn, sys.argv[1:], flush=True)
for step in range(1, 4):
    beat.enter("data", step)
    time.sleep(0.3)
    {body}
status.report(logs, 0, status.FINISHED)
"""


class Run:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = root, monkeypatch
        self.lines: list[str] = []

    def conduct(self, body: str, **launch: Any) -> int:
        script = RANK.format(logs=str(self.root / "run" / "logs"), body=body)
        self._patch.setattr(attempt, "command_line", lambda _, words, *__: [sys.executable, "-c", script, *words])
        path = self.root / "run.yaml"
        path.write_text(yaml.safe_dump({
            "model": {"path": "m"}, "data": {"path": "d"}, "output": {"directory": str(self.root / "run")},
            "train": {"steps": 4}, "launch": {"restart_pause_s": 0, **launch},
        }))  # fmt: skip
        place = NodePlace(0, 1, 1)
        local = Local(load(path), place, environment(1, place), "w", self.lines.append, None, Signals(), float("inf"))
        return conducting.conduct(local, Peers(), None, None)

    def restarts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "run" / "restarts.jsonl").read_text().splitlines()]

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def test_a_run_goes_on_from_its_last_good_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    good = run.root / "run" / "step_00000001"
    monkeypatch.setattr(conducting, "complete_checkpoints", lambda _: [(1, good)])
    monkeypatch.setattr(conducting, "last_good", lambda _: (good, ["step_00000002 is damaged"]))
    assert run.conduct("step == 2 and turn == 1 and os.kill(os.getpid(), 9)", restarts=2) == 0
    (record,) = run.restarts()
    assert (record["cause"], record["rank"], record["step"], record["resumes"]) == ("died", 0, 2, str(good))
    assert run.said("failed: rank 0: died of signal 9")
    assert run.said("step_00000002 is damaged") and run.said("restart 1 of 2 from step_00000001")
    merged = (run.root / "run" / "logs" / "merged.log").read_text()
    assert f"turn 2 ['{run.root}/run/config.yaml', '--resume', '{good}']" in merged
    assert (
        merged.index("turn 1")
        < merged.index("rank 0: died of signal 9")
        < merged.index("attempt 2")
        < merged.index("turn 2")
    )


def test_what_comes_again_ends_the_run_before_its_budget(run: Run) -> None:
    assert run.conduct("step == 2 and sys.exit(3)", restarts=9) == 1
    assert len(run.restarts()) == 1
    assert run.said("not restarted: the attempt before ended the same way in step 2")


def test_the_budget_ends(run: Run) -> None:
    assert run.conduct("step == turn and sys.exit(3)", restarts=1) == 1
    assert run.said("not restarted: launch.restarts=1 are used up")


def test_a_fault_of_the_input_is_not_tried_again(run: Run) -> None:
    with pytest.raises(UserError, match="rank 0: no such thing"):
        run.conduct("status.report(logs, 0, status.FAILED, 'user', 'no such thing'); time.sleep(30)", restarts=3)
    assert not (run.root / "run" / "restarts.jsonl").exists()
