"""`msmigrate eval`: what does not fit is said before a process starts; the figures are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.cli import main
from ms_models.train.launch.evaluating import Request, evaluate_model
from tests.ms_models.train.run_helpers import LLAMA, write_data, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def without_validation(directory: Path) -> Path:
    described = write_data(directory) / "data.json"
    body = json.loads(described.read_text())
    body["splits"]["validation"] = {"rows": 0, "tokens": 0, "files": {}}
    described.write_text(json.dumps(body))
    return directory


def refuse(line: str) -> None:
    raise AssertionError(f"nothing should run: {line}")


def test_what_does_not_fit_is_refused_before_anything_starts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_data(tmp_path / "data")
    with pytest.raises(UserError, match="give the prepared data with --data"):
        evaluate_model(model, Request(data=None), refuse)
    with pytest.raises(UserError, match="no validation split"):
        evaluate_model(model, Request(data=without_validation(tmp_path / "none")), refuse)
    with pytest.raises(UserError, match="heads"):
        evaluate_model(model, Request(data=data, layout={"tp": 3}), refuse)
    (model / "config.json").write_text(json.dumps({**LLAMA, "max_position_embeddings": 8}))
    with pytest.raises(UserError, match="max_position_embeddings"):
        evaluate_model(model, Request(data=data), refuse)
    assert main(["eval", str(model), "--data", str(data), "--layout", "tp=x"]) == 2
    assert "must be like tp=2,dp=2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.multi_process
def test_several_processes_find_what_one_does(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_data(tmp_path / "data", validation=7)
    found = {}
    for layout in (None, "tp=2", "dp=2,pp=2"):
        options = ["--no-jit", "--json", "--prefixes", "2", "--tokens", "3", "--timeout", "200"]
        options += ["--layout", layout] if layout else []
        assert main(["eval", str(model), "--data", str(data), *options]) == 0
        found[layout] = json.loads(capsys.readouterr().out)
    one = found.pop(None)
    for layout, other in found.items():
        assert other["eval_tokens"] == one["eval_tokens"], layout
        assert other["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-6), layout
        assert other["eval_accuracy"] == one["eval_accuracy"], layout
    assert found["tp=2"]["samples"] == one["samples"] and len(one["samples"]) == 2
    assert "pp=2" in found["dp=2,pp=2"]["samples_left_out"]
