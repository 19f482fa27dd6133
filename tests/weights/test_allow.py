"""Tensors that the model does not have are errors, unless a pattern allows them; then they are listed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hf_checkpoints import config, write_model, write_tensors

from mappings.errors import UserError
from mappings.formats.hf_directory import INDEX, read_json, read_tensors
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export, verify
from migrate.weights.opening import Hints


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with two tensors too many, in a file of their own."""
    write_model(tmp_path / "hf", config("llama"), dtype="F32", shards=2)
    extra = {name: ("F32", np.zeros((2, 3, 4), np.uint8)) for name in ("value_head.weight", "value_head.bias")}
    write_tensors(tmp_path / "hf" / "model-extra.safetensors", extra)
    index = read_json(tmp_path / "hf" / INDEX)
    index["weight_map"] |= dict.fromkeys(extra, "model-extra.safetensors")
    (tmp_path / "hf" / INDEX).write_text(json.dumps(index))
    return tmp_path / "hf"


def test_unexpected_tensors_are_errors(model: Path) -> None:
    report = convert(model, model.parent / "out", layout=ParallelLayout(tp=2))
    found = {item.tensor for item in report.findings if item.code == "W002"}
    assert found == {"value_head.weight", "value_head.bias"} and report.exit_code == 1
    assert not (model.parent / "out").exists()


def test_allowed_ones_are_left_out_and_listed(model: Path) -> None:
    hints = Hints(allow=("value_head.*",))
    report = convert(model, model.parent / "out", layout=ParallelLayout(tp=2), hints=hints)
    assert report.exit_code == 0
    listed = {item.tensor: item.message for item in report.findings if item.code == "W006"}
    assert set(listed) == {"value_head.weight", "value_head.bias"}
    assert all("allowed by 'value_head.*'" in message for message in listed.values())
    assert verify(model.parent / "out", source=model, source_hints=hints).exit_code == 0
    assert export(model.parent / "out", model.parent / "back").exit_code == 0
    back, original = read_tensors(model.parent / "back"), read_tensors(model)
    assert set(original) - set(back) == set(listed)


def test_a_pattern_is_anchored_and_must_fit_something(model: Path) -> None:
    report = convert(model, model.parent / "out", hints=Hints(allow=("value_head.b*",)))
    assert {item.tensor for item in report.findings if item.code == "W002"} == {"value_head.weight"}
    with pytest.raises(UserError, match="'head' fits no unexpected tensor"):
        convert(model, model.parent / "out", hints=Hints(allow=("value_head.*", "head")))
