"""A run whose ranks are killed while they save, time and again, ends where the undisturbed run does. With the grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ms_models.train.checkpoints.run_directory import complete_checkpoints
from ms_models.train.launch import starting as launching
from ms_models.train.services.metrics_file import read_metrics
from tests.ms_models.train.run_helpers import write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(900)]

# step: rank: change to the disk. One rank makes some 25 of them in its thread and, the first one, 20 more to commit.
KILLS = {
    "one": ["2:0:3", "3:0:9", "4:0:14", "5:0:20", "6:0:26", "7:0:31"],
    "dp2": ["2:0:2", "3:1:4", "4:0:11", "5:1:9", "6:0:24", "7:0:30"],
}
LAYOUTS = {"one": {}, "dp2": {"dp": 2, "zero": 1}}


@pytest.mark.parametrize("name", list(KILLS))
def test_killed_while_it_saves_a_run_ends_as_if_it_had_not_been(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = write_model(tmp_path / "model"), write_data(tmp_path / "data")
    sections: dict[str, dict[str, Any]] = {
        "layout": LAYOUTS[name],
        "train": {"steps": 8, "jit": False, "eval_every": 0, "micro_batch_size": 1, "accumulation": 2},
        "checkpoint": {"every": 1},
    }
    whole = write_config(tmp_path / "whole.yaml", model, data, tmp_path / "whole", **sections)
    assert launching.launch(whole, echo=lambda line: None) == 0
    (tmp_path / "kills").mkdir()
    monkeypatch.setattr(launching, "WORKER", "killed_worker")
    monkeypatch.setenv("MSMIGRATE_TEST_KILLS", ",".join(KILLS[name]))
    monkeypatch.setenv("MSMIGRATE_TEST_KILLED", str(tmp_path / "kills"))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(__file__).parents[2]}")
    sections["launch"] = {"restarts": len(KILLS[name]), "restart_pause_s": 0.0}
    killed = write_config(tmp_path / "killed.yaml", model, data, tmp_path / "killed", **sections)
    lines: list[str] = []
    assert launching.launch(killed, echo=lines.append) == 0, "\n".join(lines)
    assert {path.name for path in (tmp_path / "kills").iterdir()} == {one.split(":")[0] for one in KILLS[name]}
    restarts = [json.loads(line) for line in (tmp_path / "killed" / "restarts.jsonl").read_text().splitlines()]
    print("resumed from", [Path(one["resumes"] or "the beginning").name for one in restarts])
    assert len(restarts) == len(KILLS[name])
    assert [number for number, _ in complete_checkpoints(tmp_path / "killed")] == [7, 8]
    for path in (tmp_path / "whole" / "step_00000008").glob("*-rank*"):
        assert (tmp_path / "killed" / "step_00000008" / path.name).read_bytes() == path.read_bytes(), path.name
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")


def curve(run: Path) -> list[tuple[int, float, float]]:
    records = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record]
    return [(record["step"], record["loss"], record["grad_norm"]) for record in records]
