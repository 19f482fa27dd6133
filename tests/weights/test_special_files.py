"""Pipes and devices in place of files are refused, wherever something is opened: opening one would wait for ever."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hf_checkpoints import config, write_model

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, diff, inspect, verify
from migrate.weights.destinations import Destination
from migrate.weights.opening import Hints

pytestmark = pytest.mark.timeout(60)
TP2 = ParallelLayout(tp=2)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


PLACES = [
    ("hf", "config.json"),
    ("hf", "model-00001-of-00002.safetensors"),
    ("hf", "model.safetensors.index.json"),
    ("sharded", "config.json"),
    ("sharded", "manifest.json"),
    ("mindspore", "part0.safetensors"),
    ("mindspore", "param_name_map.json"),
    ("mindspore", "conversion_manifest.json"),
    ("strategy", "rank_1/checkpoint_1.ckpt"),
    ("strategy", "strategy/ckpt_strategy_rank_0.ckpt"),
    ("iteration", "iteration_00000003/metadata.json"),
    ("iteration", "iteration_00000003/common.json"),
    ("iteration", "iteration_00000003/model-0000000-0000002.safetensors"),
    ("iteration", "latest_checkpointed_iteration.txt"),
    ("ckpt", "model.ckpt"),
]
DESTINATIONS = {
    "hf": Destination("hf", max_shard_size=8000),
    "sharded": Destination(layout=TP2),
    "mindspore": Destination("mindspore"),
    "strategy": Destination("strategy", TP2, as_ckpt=True),
    "iteration": Destination("iteration", TP2, step=3),
    "ckpt": Destination("ckpt"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_model(root / "source", config("llama", num_hidden_layers=1))
    for name, destination in DESTINATIONS.items():
        assert convert(root / "source", root / name, destination=destination).exit_code == 0
        if name != "mindspore":  # whose sizes would be asked first
            (root / name / "conversion_manifest.json").unlink(missing_ok=True)
    return root


@pytest.mark.parametrize(("kind", "file"), PLACES, ids=lambda value: value.rpartition("/")[2])
@pytest.mark.parametrize("change", [pipe, device, nowhere])
def test_what_is_no_file_is_refused(made: Path, tmp_path: Path, kind: str, file: str, change: Any) -> None:
    import shutil

    shutil.copytree(made / kind, tmp_path / kind)
    change(tmp_path / kind / file)
    outcomes = []
    for job in (
        lambda: convert(tmp_path / kind, tmp_path / "out", layout=TP2, hints=Hints(container=kind)),
        lambda: verify(tmp_path / kind),
        lambda: verify(made / "hf", source=tmp_path / kind, source_hints=Hints(container=kind)),
        lambda: diff(made / "hf", tmp_path / kind, second_hints=Hints(container=kind)),
    ):
        try:
            report = job()
        except UserError as error:
            outcomes.append(str(error))
        else:
            assert report.exit_code == 1
            outcomes.append("; ".join(f"{f.file} {f.message}" for f in report.findings))
    name = file.rpartition("/")[2]
    assert all(name in text and len(text) < 300 for text in outcomes), outcomes
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["pipe.ckpt", "pipe.safetensors", "pipe.bin"])
def test_a_pipe_as_the_source_itself(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for job in (convert, inspect):
        with pytest.raises(UserError, match=r"pipe\.\w+: is neither a file nor a directory"):
            job(tmp_path / name, *([tmp_path / "out"] if job is convert else []))


def test_pickles_and_side_files(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", config("llama"))
    pipe(tmp_path / "hf/tokenizer.json")
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert "tokenizer.json" in {f.file for f in report.findings if f.code == "W009"} and report.exit_code == 0
    (tmp_path / "hf/model.safetensors").unlink()
    os.mkfifo(tmp_path / "hf/pytorch_model.bin")
    for job in (lambda: convert(tmp_path / "hf", tmp_path / "new", layout=TP2), lambda: inspect(tmp_path / "hf")):
        with pytest.raises(UserError, match=r"pytorch_model\.bin: cannot be read \(is no regular file\)"):
            job()


def test_a_journal_that_is_a_pipe(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", config("llama"))
    os.mkfifo(tmp_path / ".out.journal")
    with pytest.raises(UserError, match=r"\.out\.journal: is no regular file; remove it"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
