"""What a run of two ranks leaves behind is what the report, the trouble table and the profile read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from migrate.cli import main
from migrate.profiles.judging import profile
from migrate.run_record import RunRecord
from migrate.trouble.register import examine
from tests.ms_models.train.run_helpers import write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]
STEPS = 6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evidence")
    config = write_config(
        root / "run.yaml", write_model(root / "model"), write_data(root / "data"), root / "run",
        layout={"dp": 2, "zero": 1}, train={"jit": False, "accumulation": 2},
        metrics={"tensorboard": True, "peak_tflops": 0.1, "target_loss": 100.0, "prefixes": 2, "sample_tokens": 3},
        profile={"ranks": [0, 1]},
    )  # fmt: skip
    assert main(["train", str(config), "--profile", "steps=4:5"]) == 0
    return root / "run"


def test_figures_are_those_of_all_ranks(run: Path) -> None:
    found = RunRecord.read(run)
    assert [one["step"] for one in found.steps] == list(range(1, STEPS + 1))
    for one in found.steps:
        assert 0 < one["compute_min_s"] <= one["compute_max_s"] <= one["step_time_s"] * 1.5
        assert one["slowest_rank"] in (0, 1) and 0 < one["reduce_share"] < 1
        parts = sum(one[f"time_{name}_s"] for name in ("data", "compute", "reduce", "update"))
        assert parts == pytest.approx(one["step_time_s"], rel=0.25), "the parts are the step"
        assert one["mfu"] == pytest.approx(one["tflops"] / 0.1)
    assert [one["step"] for one in found.steps if "target_loss" in one] == [1]
    assert [one["rank"] for one in found.ranks] == [0, 1]
    assert [one["event"] for one in found.events] == ["start", "target", "end"]
    assert [len(one["samples"]) for one in found.evaluations] == [2, 2]
    assert list((run / "tensorboard").glob("events.out.*"))
    assert "T804" not in {finding.code for finding in examine(found).findings}


def test_the_recording_tells_communication_from_computation(run: Path) -> None:
    report = profile(run)
    assert len(report.facts["ranks"]) == 2
    names = {row["operator"] for row in report.facts["operators"]}
    shares = report.facts["shares"]
    assert "MatMul" in names
    assert 0 < shares["communication"] < 1 and 0 < shares["computation"] < 1


def test_the_page_shows_the_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for part in ("6 of 6", "Ranks", "Samples after step 6", "Utilisation", "layout.dp"):
        assert part in page, part
    capsys.readouterr()
    assert main(["trouble", str(run), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["command"] == "trouble"
