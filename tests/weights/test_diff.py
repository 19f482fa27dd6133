"""`diff` sees through containers, cuts and padding, and finds what was changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hf_checkpoints import config, write_model

from mappings.errors import UserError
from mappings.formats.hf_directory import read_tensors
from mappings.layout import ParallelLayout
from migrate.report import Verdict
from migrate.weights.command import convert
from migrate.weights.difference import diff

DOWN = "model.layers.0.mlp.down_proj.weight"


def change(directory: Path, name: str, element: int, by: float) -> None:
    entry = read_tensors(directory)[name]
    data = bytearray(entry.path.read_bytes())
    at = entry.offset + 4 * element
    value = np.frombuffer(bytes(data[at : at + 4]), "<f4")[0] + np.float32(by)
    data[at : at + 4] = np.float32(value).tobytes()
    entry.path.write_bytes(data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "hf", config("llama"), dtype="F32", shards=2)
    return tmp_path / "hf"


@pytest.mark.parametrize("tp", [1, 2])
def test_one_model_in_two_layouts_does_not_differ(model: Path, tp: int) -> None:
    convert(model, model.parent / "ranks", layout=ParallelLayout(tp=tp, vocab_multiple=8))
    for pair in ((model, model.parent / "ranks"), (model.parent / "ranks", model)):
        report = diff(*pair)
        assert report.exit_code == 0 and not report.findings
        stages = [(stage.name, stage.compared) for stage in report.stages if stage.name != "replicas"]
        assert stages == [("names", None), ("parameters", 21)]


def test_a_changed_element_is_found_with_its_place_and_size(model: Path) -> None:
    convert(model, model.parent / "ranks", layout=ParallelLayout(tp=2))
    change(model, DOWN, 25, 0.5)  # [1, 1] of [16, 24]
    report = diff(model.parent / "ranks", model)
    (found,) = report.findings
    assert (found.code, found.tensor, report.exit_code) == ("W013", DOWN, 1)
    (row,) = report.facts["parameters"]
    assert (row["unequal"], row["of"], row["first"]) == (1, 16 * 24, [1, 1])
    assert row["largest"] == pytest.approx(0.5, rel=1e-6)  # fp32 addition


def test_types_that_hold_equal_numbers_are_a_warning(tmp_path: Path) -> None:
    write_model(tmp_path / "a", config("llama"), dtype="F32")
    for entry in read_tensors(tmp_path / "a").values():  # numbers that BF16 holds
        data = bytearray(entry.path.read_bytes())
        numbers = np.frombuffer(bytes(data[entry.offset : entry.offset + entry.nbytes]), "<u4") & 0xFFFF0000
        data[entry.offset : entry.offset + entry.nbytes] = numbers.astype("<u4").tobytes()
        entry.path.write_bytes(data)
    write_model(tmp_path / "b", config("llama"), dtype="BF16")
    for entry in read_tensors(tmp_path / "b").values():
        other = read_tensors(tmp_path / "a")[entry.name]
        raw = other.path.read_bytes()[other.offset : other.offset + other.nbytes]
        halves = (np.frombuffer(raw, "<u4") >> 16).astype("<u2").tobytes()
        data = bytearray(entry.path.read_bytes())
        data[entry.offset : entry.offset + entry.nbytes] = halves
        entry.path.write_bytes(data)
    report = diff(tmp_path / "a", tmp_path / "b")
    assert {found.code for found in report.findings} == {"W022"} and len(report.findings) == 21


def test_other_models_are_told_apart(tmp_path: Path) -> None:
    write_model(tmp_path / "a", config("llama"))
    write_model(tmp_path / "b", config("llama", num_hidden_layers=3))
    report = diff(tmp_path / "a", tmp_path / "b")
    assert report.stages[0].verdict is Verdict.FAIL
    assert {found.tensor for found in report.findings if found.code == "W002"} == {
        name for name in read_tensors(tmp_path / "b") if ".layers.2." in name
    }
    write_model(tmp_path / "c", config("llama", intermediate_size=32))
    shapes = [found for found in diff(tmp_path / "a", tmp_path / "c").findings if found.code == "W003"]
    assert {found.tensor.split(".")[-2] for found in shapes if found.tensor} == {"gate_proj", "up_proj", "down_proj"}


def test_no_checkpoint(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        diff(model, tmp_path / "none")
