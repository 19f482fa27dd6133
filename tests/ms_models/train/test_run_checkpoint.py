"""Checkpoints of a run: complete or absent, exact, verified, pruned; an interrupted save leaves the last good one."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest

from mappings.errors import UserError
from mappings.formats.manifest import Manifest
from mappings.layout import ParallelLayout
from migrate.weights.command import reshard
from ms_models.train.checkpoints import checkpoint, random_state, run_directory, writing
from ms_models.train.checkpoints.recovery import verify
from ms_models.train.checkpoints.run_directory import find_latest, read_manifest, remove_leftovers
from ms_models.train.optimizer import MOMENTS
from ms_models.train.step import Trainer
from tests.ms_models.train.checkpoint_helpers import (
    DEEPSEEK,
    DEEPSEEK_FAMILY,
    make_trainer,
    save,
    step,
    steps,
    write_deepseek,
)
from tests.ms_models.train.run_helpers import read_tensors, write_data, write_model


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("checkpoint")
    return write_model(root / "model"), write_data(root / "data")


@pytest.fixture(scope="module")
def trainer(paths: tuple[Path, Path]) -> Trainer:
    trainer = make_trainer(paths[0])
    step(trainer, paths[1])
    return trainer


def test_everything_comes_back_exactly(trainer: Trainer, paths: tuple[Path, Path], tmp_path: Path) -> None:
    directory = save(tmp_path, 3, trainer)
    drawn = (random.random(), np.random.rand(), ms.get_rng_state().asnumpy().tolist())
    manifest = read_manifest(find_latest(tmp_path))
    assert find_latest(tmp_path) == directory
    assert manifest.training["step"] == 3
    assert manifest.training["optimizer_step"] == 1

    restored = make_trainer(directory)
    random_state.seed_all(99, 0)
    checkpoint.load(directory, manifest, restored, seed=0)
    assert (random.random(), np.random.rand(), ms.get_rng_state().asnumpy().tolist()) == drawn
    for name, value in trainer.optimizer.state().items():
        assert np.array_equal(restored.optimizer.state()[name], value), name
    assert step(restored, paths[1], 4) == step(trainer, paths[1], 4)
    for own, other in zip(restored.model.get_parameters(), trainer.model.get_parameters(), strict=True):
        assert np.array_equal(own.asnumpy(), other.asnumpy()), own.name


def test_experts_in_stacks_are_stored_one_by_one(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """A model that holds other tensors than the checkpoint, one of them never trained: its states are zeros there."""
    trainer = make_trainer(write_deepseek(tmp_path / "model"))
    step(trainer, paths[1])
    directory = save(tmp_path, 1, trainer)
    assert reshard(directory, tmp_path / "cut", layout=ParallelLayout(dp=2, ep=2, zero=1)).exit_code == 0
    states = read_tensors(directory / "optimizer-rank00000.safetensors")
    assert set(states) == {f"{moment}.{p.name}" for moment in MOMENTS for p in DEEPSEEK_FAMILY.parameters(DEEPSEEK)}
    stacked = trainer.optimizer.whole_state()["exp_avg.model.layers.1.mlp.experts.down_proj"]
    assert np.array_equal(states["exp_avg.model.layers.1.mlp.experts.2.down_proj.weight"], stacked[2])
    assert stacked[2].any()
    assert not states["exp_avg.model.layers.1.mlp.gate.e_score_correction_bias"].any()
    restored = make_trainer(directory)
    checkpoint.load(directory, read_manifest(directory), restored, seed=0)
    assert step(restored, paths[1], 4) == step(trainer, paths[1], 4)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize(
    "file", ["model-rank00000.safetensors", "optimizer-rank00000.safetensors", "random-rank00000.json", "config.json"]
)
@pytest.mark.parametrize(
    ("damage", "expected"), [(truncate, "bytes, expected"), (flip, "SHA-256 differs"), (Path.unlink, "missing")]
)
def test_damage_is_found_and_named(
    trainer: Trainer, tmp_path: Path, file: str, damage: Callable[[Path], None], expected: str
) -> None:
    directory = save(tmp_path, 1, trainer)
    verify(directory, read_manifest(directory))  # whole so far
    damage(directory / file)
    with pytest.raises(UserError) as caught:
        verify(directory, read_manifest(directory))
    assert file in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "file", ["model-rank00000.safetensors", "optimizer-rank00000.safetensors", "random-rank00000.json"]
)
def test_a_rank_does_not_load_damaged_files(trainer: Trainer, tmp_path: Path, file: str) -> None:
    directory = save(tmp_path, 1, trainer)
    flip(directory / file)
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(directory, read_manifest(directory), make_trainer(directory), seed=0)


def test_the_last_ones_are_kept_also_across_restarts(trainer: Trainer, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        save(tmp_path, number, trainer)
    assert steps(tmp_path) == [2, 3]
    save(tmp_path, 4, trainer, keep=3)
    assert steps(tmp_path) == [2, 3, 4]
    assert (tmp_path / "LATEST").read_text() == "step_00000004\n"


def test_going_back_replaces_steps_as_they_are_passed_again(trainer: Trainer, tmp_path: Path) -> None:
    for number in (3, 6, 9):
        save(tmp_path, number, trainer, keep=3)
    (tmp_path / "LATEST").write_text("step_00000003\n")
    assert find_latest(tmp_path).name == "step_00000003"
    (tmp_path / "step_00000006" / "mark").touch()
    save(tmp_path, 6, trainer, keep=3)
    assert not (tmp_path / "step_00000006" / "mark").exists()
    assert steps(tmp_path) == [3, 6, 9]
    assert find_latest(tmp_path).name == "step_00000006"


@pytest.mark.parametrize("moment", ["rename", "latest"])
def test_a_crash_during_commit_leaves_the_last_good_one(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save(tmp_path, 1, trainer)
    before = read_manifest(find_latest(tmp_path))

    class Crash(BaseException):
        """As if the process had been killed: nothing may catch it."""

    def crash(*_: Any) -> None:
        raise Crash

    monkeypatch.setattr(Path, "rename" if moment == "rename" else "replace", crash)
    if moment == "latest":  # the manifest itself is written with replace
        monkeypatch.setattr(Manifest, "write", lambda self, directory: (directory / "manifest.json").write_text("{}"))
    with pytest.raises(Crash):
        save(tmp_path, 2, trainer)
    monkeypatch.undo()
    assert find_latest(tmp_path).name == "step_00000001"
    verify(find_latest(tmp_path), before)
    remove_leftovers(tmp_path)
    assert not list(tmp_path.glob(".step_*"))
    save(tmp_path, 2, trainer)
    assert find_latest(tmp_path).name == "step_00000002"
    verify(find_latest(tmp_path), read_manifest(find_latest(tmp_path)))


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failing_disk_is_tried_twice(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, asynchronous: bool
) -> None:
    save(tmp_path, 1, trainer)
    calls = []
    write = writing.write

    def full(path: Path, *pieces: Any) -> Any:
        if path.name.startswith("optimizer"):
            calls.append(path)
            if len(calls) <= failures:
                raise OSError(28, "No space left on device", str(path))
        return write(path, *pieces)

    monkeypatch.setattr(writing, "write", full)
    if failures == 1:
        assert find_latest(save(tmp_path, 2, trainer, asynchronous=asynchronous).parent).name == "step_00000002"
        return
    with pytest.raises(UserError, match=r"step 2 could not be saved in 2 attempts: No space left on device"):
        save(tmp_path, 2, trainer, asynchronous=asynchronous)
    assert find_latest(tmp_path).name == "step_00000001"
    verify(find_latest(tmp_path), read_manifest(find_latest(tmp_path)))
    assert not list(tmp_path.glob(".step_*")), "half a checkpoint is left on the full disk"


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        ("../elsewhere", "must hold a name like step_00000100"),
        ("step_00000009", "which is missing or incomplete; complete checkpoints: step_00000001"),
    ],
)
def test_bad_latest_is_refused(trainer: Trainer, tmp_path: Path, latest: str, expected: str) -> None:
    save(tmp_path, 1, trainer)
    (tmp_path / "LATEST").write_text(latest)
    with pytest.raises(UserError) as caught:
        find_latest(tmp_path)
    assert expected in str(caught.value)


def test_without_latest_the_newest_checkpoint_is_taken(trainer: Trainer, tmp_path: Path) -> None:
    """As where `weights reshard` wrote one into a new run directory."""
    with pytest.raises(UserError, match="no LATEST file and no checkpoint to resume from"):
        find_latest(tmp_path)
    newest = [save(tmp_path, step, trainer) for step in (1, 2)][-1]
    (tmp_path / "LATEST").unlink()
    assert find_latest(tmp_path) == newest


def test_weights_alone_cannot_be_resumed(trainer: Trainer, tmp_path: Path) -> None:
    directory = save(tmp_path, 1, trainer)
    body = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**body, "training": {}}))
    with pytest.raises(UserError, match="no training state"):
        read_manifest(directory)


def test_half_removed_checkpoints_do_not_count_and_are_cleared(trainer: Trainer, tmp_path: Path) -> None:
    directory = save(tmp_path, 1, trainer)
    shutil.copytree(directory, tmp_path / run_directory.step_name(7))
    (tmp_path / run_directory.step_name(7) / "manifest.json").unlink()
    assert steps(tmp_path) == [1]
    remove_leftovers(tmp_path)
    assert not (tmp_path / run_directory.step_name(7)).exists()
    assert directory.is_dir()
