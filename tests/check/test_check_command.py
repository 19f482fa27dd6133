"""What `check` and `registry` say of runs and repositories, and that nothing compared is nothing passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from check_healthy import make

from migrate.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("healthy"))


def run_file(path: Path, **sections: object) -> Path:
    body = {"train": {"steps": 2}, "output": {"directory": "out"}, "data": {"path": "."}, **sections}
    path.write_text(yaml.safe_dump(body))
    return path


def test_a_run_that_the_trainer_refuses_is_found_with_the_field(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = run_file(tmp_path / "run.yaml", model={"path": str(model)}, data={"path": ".", "seq_lenght": 64})
    assert main(["check", str(model), "--run", str(wrong), "--json"]) == 1
    [found] = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["code"] == "C606"]
    assert found["file"] == "run.yaml" and "unknown key 'data.seq_lenght'" in found["message"]
    right = run_file(tmp_path / "right.yaml", model={"path": str(model)})
    main(["check", str(model), "--run", str(right), "--json"])
    assert "C606" not in {f["code"] for f in json.loads(capsys.readouterr().out)["findings"]}


def test_a_repository_without_model_types_compared_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "module.py").write_text("x = 1\n")
    assert main(["registry", str(tmp_path / "repo"), "--json"]) == 2
    [names, _] = json.loads(capsys.readouterr().out)["stages"]
    assert names["verdict"] == "could_not_run" and "in 1 Python file, so there was nothing" in names["message"]
    # Imported, it was looked at: that nothing is registered is seen.
    assert main(["registry", str(tmp_path / "repo"), "--import", "module"]) == 0
    # To a check of a model it adds nothing, and takes nothing away.
    assert main(["check", str(model), "--repo", str(tmp_path / "repo")]) == 0


def test_the_fullest_rank_has_to_fit_into_a_device(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_file(tmp_path / "run.yaml", model={"path": str(model)}, data={"text": ["."], "seq_length": 64})
    for gib, fits in ((64, True), (0.01, False)):
        main(["check", str(model), "--run", str(run), "--device-memory", str(gib), "--json"])
        report = json.loads(capsys.readouterr().out)
        [stage] = [stage for stage in report["stages"] if stage["name"] == "memory of a rank"]
        assert stage["verdict"] == ("pass" if fits else "fail") and f"{gib:g} GiB of a device" in stage["message"]
        found = [one for one in report["findings"] if one["code"] == "C608"]
        assert [one["file"] for one in found] == ([] if fits else ["run.yaml"])
    assert main(["check", str(model), "--device-memory", "64"]) == 2
    assert "give --run" in capsys.readouterr().err
