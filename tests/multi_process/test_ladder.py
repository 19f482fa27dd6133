"""Ladders with real processes: a healthy one is clean, and a planted fault is found on the rung that adds its axis."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from migrate.ladder import command
from migrate.report import Report, Verdict
from ms_models.train.launch import starting
from tests.ms_models.train.run_helpers import write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ladder")
    model, data = write_model(root / "model"), write_data(root / "data")
    return write_config(root / "run.yaml", model, data, root / "out", train={"jit": False, "eval_every": 0})


def climb(config: Path, sizes: list[int], **options: Any) -> Report:
    return command.ladder(config, sizes=sizes, steps=2, say=lambda line: None, **options)


def test_a_fault_is_found_on_the_rung_that_adds_its_axis(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "WORKER", "faulty_worker")
    monkeypatch.setenv("MSMIGRATE_TEST_FAULT", "no reduction over dp")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    report = climb(config, [1, 2])
    assert report.exit_code == 1
    assert [stage.verdict for stage in report.stages] == [Verdict.PASS, Verdict.PASS, Verdict.FAIL]
    (finding,) = [one for one in report.findings if one.code == command.DEVIATES]
    assert "rung 2 is the first that deviates; it adds dp: grad_norm leaves the band at step 1" in finding.message
    assert "gradients are not summed over replicas" in finding.why


def test_eight_ranks_of_three_axes_are_in_the_band(config: Path) -> None:
    shutil.rmtree(config.parent / "out", ignore_errors=True)
    report = climb(config, [1, 2, 4, 8])
    assert report.exit_code == 0, report.to_json()
    layouts = [row["layout"] for row in report.facts["rungs"]]
    assert layouts == ["one process", "dp=2", "tp=2 dp=2", "tp=2 dp=2 pp=2"]
    assert all(row["peak GB"] > 0 for row in report.facts["rungs"])
