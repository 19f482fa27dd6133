"""What the metrics and the profile ask for is checked before a run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mappings.errors import UserError
from ms_models.train.config import load
from ms_models.train.launch.checks import metrics
from tests.ms_models.train.run_helpers import write_config, write_tokenizer


def checked(folder: Path, **sections: dict[str, Any]) -> str:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    return metrics.check_metrics(load(write_config(folder / "run.yaml", model, folder / "data", folder, **sections)))


def test_what_can_be_had_is_said(tmp_path: Path) -> None:
    assert checked(tmp_path).startswith("no MFU")
    told = checked(tmp_path, metrics={"peak_tflops": 1.0, "tensorboard": True}, profile={"steps": [2, 3]})
    assert told == "MFU of the stated peak, event files for TensorBoard, profile of steps 2 to 3"


def test_what_cannot_be_had_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        checked(tmp_path, metrics={"prompts": ["w1"]})
    write_tokenizer(tmp_path / "model")
    checked(tmp_path, metrics={"prompts": ["w1"]})
    with pytest.raises(UserError, match="no tokens"):
        checked(tmp_path, metrics={"prompts": [""]})
    with pytest.raises(UserError, match="goes beyond"):
        checked(tmp_path, profile={"steps": [5, 7]})
    with pytest.raises(UserError, match="first and last step"):
        checked(tmp_path, profile={"steps": [5, 4]})
    with pytest.raises(UserError, match="2 is no rank"):
        checked(tmp_path, profile={"steps": [2, 3], "ranks": [0, 2]}, layout={"dp": 2})
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'msmigrate\[viz\]'"):
        checked(tmp_path, metrics={"tensorboard": True})
