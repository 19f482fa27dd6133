"""Files that are not those of the manifest are found before anything is planned, by their sizes alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from container_runs import with_states
from hf_checkpoints import config, write_model

from mappings.formats.manifest import Manifest
from mappings.layout import ParallelLayout
from migrate.weights import command
from migrate.weights.command import convert, diff, export, reshard, verify
from migrate.weights.containers import hf
from migrate.weights.destinations import Destination
from migrate.weights.opening import Hints

TP2 = ParallelLayout(tp=2)
RANKS = ["model-rank00000.safetensors", "model-rank00001.safetensors"]


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Two stages of different lengths: their files have different sizes."""
    write_model(tmp_path / "hf", config("llama", num_hidden_layers=3))
    convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(pp=2))
    return tmp_path / "out"


def cut(directory: Path) -> set[tuple[str, str]]:
    os.truncate(directory / RANKS[0], 999)
    (directory / RANKS[1]).unlink()
    return {("W011", RANKS[0]), ("W010", RANKS[1])}


def swapped(directory: Path) -> set[tuple[str, str]]:
    for name, other in ((RANKS[0], "x"), (RANKS[1], RANKS[0]), ("x", RANKS[1])):
        (directory / name).rename(directory / other)
    return {("W011", name) for name in RANKS}


@pytest.mark.parametrize("damage", [cut, swapped])
@pytest.mark.parametrize("job", ["convert", "export", "reshard"])
def test_a_cut_or_swapped_file_is_an_error_before_anything_is_read(
    uneven: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, job: str
) -> None:
    expected = damage(uneven)
    monkeypatch.setattr(command, "open_checkpoint", None)  # not even a header
    out = uneven.parent / "new"
    report = {
        "convert": lambda: convert(uneven, out, layout=TP2),
        "export": lambda: export(uneven, out),
        "reshard": lambda: reshard(uneven, out, layout=TP2),
    }[job]()
    assert {(f.code, f.file) for f in report.findings} == expected and report.exit_code == 1
    assert sorted(path.name for path in uneven.parent.iterdir()) == ["hf", "out"]


def test_sizes_of_a_conversion_manifest_count_too(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", config("llama"))
    convert(tmp_path / "hf", tmp_path / "ranks", destination=Destination("strategy", TP2, as_ckpt=True))
    with (tmp_path / "ranks/rank_1/checkpoint_1.ckpt").open("ab") as file:
        file.write(b"\n\1a")  # one more value, without a meaning
    for report in (export(tmp_path / "ranks", tmp_path / "out"), diff(tmp_path / "ranks", tmp_path / "hf")):
        assert [(f.code, f.file) for f in report.findings] == [("W011", "rank_1/checkpoint_1.ckpt")]
        assert report.exit_code == 1
    report = verify(tmp_path / "hf", source=tmp_path / "ranks")
    assert [(f.code, f.file) for f in report.findings] == [("W011", "rank_1/checkpoint_1.ckpt")]


def test_a_manifest_of_another_tool_is_none_of_ours(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", config("llama"))
    (tmp_path / "hf/manifest.json").write_text(json.dumps({"name": "web app"}))
    assert convert(tmp_path / "hf", tmp_path / "out", layout=TP2, hints=Hints(container="hf")).exit_code == 0


def test_copies_of_what_is_not_written_are_not_compared(tmp_path: Path) -> None:
    """Two ranks whose moments of a norm drifted apart: weights alone are not touched by it."""
    write_model(tmp_path / "hf", config("llama"))
    with_states(hf.read(tmp_path / "hf"), tmp_path / "training")
    convert(tmp_path / "training", tmp_path / "run", layout=TP2)
    path = tmp_path / "run/optimizer-rank00001.safetensors"
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") :] = bytes(len(data) - 8 - int.from_bytes(data[:8], "little"))
    path.write_bytes(data)
    assert set(Manifest.read(tmp_path / "run").files) >= {path.name}
    report = reshard(tmp_path / "run", tmp_path / "new", layout=ParallelLayout())
    drifted = {f.tensor for f in report.findings if f.code == "W014"}
    assert "exp_avg.model.norm.weight" in drifted and all(str(name).startswith("exp_avg") for name in drifted)
    stages = [stage for stage in verify(tmp_path / "run").stages if stage.name == "replicas"]
    assert [stage.verdict.name for stage in stages] == ["FAIL"]
    weights = export(tmp_path / "run", tmp_path / "back")
    again = convert(tmp_path / "run", tmp_path / "weights", layout=TP2, weights_only=True)
    for found in (weights, again):
        assert found.exit_code == 0
        (replicas,) = [stage for stage in found.stages if stage.name == "replicas"]
        assert replicas.compared is not None and replicas.compared * 3 == stages[0].compared


def test_a_changed_configuration_is_noted(tmp_path: Path) -> None:
    """Small files are edited by people; what holds tensors, or says where they are, is not."""
    write_model(tmp_path / "hf", config("llama"))
    convert(tmp_path / "hf", tmp_path / "full", destination=Destination("mindspore"))
    body = json.loads((tmp_path / "full/config.json").read_text())
    (tmp_path / "full/config.json").write_text(json.dumps({**body, "use_cache": False}))
    (tmp_path / "full/tokenizer.json").unlink()
    report = export(tmp_path / "full", tmp_path / "back")
    assert [(f.code, f.file) for f in report.findings] == [("W027", "config.json"), ("W027", "tokenizer.json")]
    assert report.exit_code == 0 and verify(tmp_path / "full").exit_code == 1
    with (tmp_path / "full/param_name_map.json").open("a") as file:
        file.write(" ")
    assert export(tmp_path / "full", tmp_path / "new").exit_code == 1
