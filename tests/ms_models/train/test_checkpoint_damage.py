"""What a kill, a full disk or a damaged file leaves: a whole checkpoint to go on from, or a refusal that names one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mappings.errors import UserError
from ms_models.train.checkpoints.recovery import (
    ABANDONED,
    abandon_later,
    aside_name,
    chosen,
    last_good,
    problems_of,
    verify,
)
from ms_models.train.checkpoints.run_directory import complete_checkpoints, find_latest, read_manifest, remove_leftovers
from tests.ms_models.train import killed_saves
from tests.ms_models.train.run_helpers import read_tensors

ROOT = Path(__file__).parents[3]


def make_run(run: Path, *steps: int) -> Path:
    for step in steps:
        killed_saves.save(run, step)
    return run


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_killed_at_any_moment_of_a_save_the_last_good_one_is_there(tmp_path: Path) -> None:
    """Before each write, sync, rename and removal, and in the middle of each piece of each file."""
    environment, command = (
        {**os.environ, "PYTHONPATH": str(ROOT)},
        [sys.executable, killed_saves.__file__, str(tmp_path)],
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    points = int(done.stdout)
    assert points > 40
    found = []
    for point in range(1, points + 1):
        run = tmp_path / str(point)
        step = int(find_latest(run).name[-8:])
        found.append(step)
        verify(find_latest(run), read_manifest(find_latest(run)))
        assert read_manifest(find_latest(run)).training["data"]["position"] == 8 * step
        weights = read_tensors(find_latest(run) / "model-rank00000.safetensors")["w"]
        assert np.array_equal(weights, np.full((64, 1024), step, np.float32))
        for number, directory in complete_checkpoints(run):
            # One that is being removed is named by nothing; whatever else looks complete is whole.
            assert number == 1 or not problems_of(directory), f"{point}: {directory}"
        remove_leftovers(run)
        assert {path.name for path in run.iterdir()} <= {"LATEST", "LATEST.tmp", *(f"step_{n:08d}" for n in (1, 2, 3))}
        killed_saves.save(run, 3)
        assert find_latest(run).name == "step_00000003"
        assert [number for number, _ in complete_checkpoints(run)] == [2, 3]
    assert found == sorted(found), "the new one is there from one change on"
    assert {2, 3} == set(found)


@contextmanager
def small_disk(where: Path, size: str) -> Iterator[Path]:
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no permission to mount a small tmpfs, which stands for a full disk: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no `mount` program, which makes the small disk")
def test_a_full_disk_is_an_error_and_the_last_good_one_stays(tmp_path: Path) -> None:
    """A checkpoint takes 0.5 MB; the disk has room for two, not for the third that comes before the first goes."""
    with small_disk(tmp_path / "disk", "1300k") as disk:
        run = make_run(disk / "run", 1, 2)
        with pytest.raises(UserError) as caught:
            killed_saves.save(run, 3)
        assert "step 3 could not be saved in 2 attempts: No space left on device" in str(caught.value)
        assert "make room" in str(caught.value)
        assert find_latest(run).name == "step_00000002"
        verify(find_latest(run), read_manifest(find_latest(run)))
        assert not list(run.glob(".step_*")), "half a checkpoint is left on the full disk"
        shutil.rmtree(run / "step_00000001")  # room is made
        killed_saves.save(run, 3)
        assert last_good(run) == (run / "step_00000003", [])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated shard": lambda path: truncate(path / "model-rank00000.safetensors"),
    "flipped byte": lambda path: flip(path / "optimizer-rank00000.safetensors"),
    "missing rank file": lambda path: (path / "random-rank00000.json").unlink(),
    "empty manifest": lambda path: (path / "manifest.json").write_text(""),
    "wrong digit": lambda path: (path / "manifest.json").write_text(
        (path / "manifest.json").read_text().replace('"position": 24', '"position": 16')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_restarts_take_the_last_good_one_and_keep_the_damaged(tmp_path: Path, damage: str) -> None:
    run = make_run(tmp_path / "run", 2, 3)
    DAMAGES[damage](run / "step_00000003")
    found, lines = last_good(run)
    assert found == run / "step_00000002"
    assert len(lines) == 1 and "step_00000003 is damaged" in lines[0] and "step_00000003.damaged" in lines[0]
    assert (run / "step_00000003.damaged").is_dir()
    assert find_latest(run) == found
    assert last_good(run) == (found, [])
    remove_leftovers(run)
    assert (run / "step_00000003.damaged").is_dir(), "nothing that was set aside is removed"
    killed_saves.save(run, 3)
    DAMAGES[damage](run / "step_00000003")
    last_good(run)
    assert (run / "step_00000003.damaged2").is_dir()


def test_without_a_whole_one_there_is_nothing_to_restart_from(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2, 3)
    for _, directory in complete_checkpoints(run):
        flip(directory / "model-rank00000.safetensors")
    with pytest.raises(UserError, match=r"no whole checkpoint to go on from \(step_00000003 is damaged"):
        last_good(run)


def test_a_restart_does_not_pass_what_the_user_went_back_to(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2, 3)
    (run / "LATEST").write_text("step_00000002\n")
    assert last_good(run) == (run / "step_00000002", [])


def test_what_the_user_left_behind_neither_counts_nor_is_lost(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1, 3)
    (run / "LATEST").write_text("step_00000001\n")
    abandon_later(run, 1)
    assert [number for number, _ in complete_checkpoints(run)] == [1]
    assert (run / "step_00000003.abandoned" / "manifest.json").is_file()
    killed_saves.save(run, 2)
    assert [number for number, _ in complete_checkpoints(run)] == [1, 2], (
        "the one that was left would be one of the last"
    )


def test_the_name_that_is_promised_is_the_one_that_is_given(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1, 3)
    for expected in ("step_00000003.abandoned", "step_00000003.abandoned2"):
        assert aside_name(run / "step_00000003", ABANDONED) == expected
        abandon_later(run, 1)
        assert (run / expected / "manifest.json").is_file()
        killed_saves.save(run, 3)


def test_the_refusal_names_the_newest_whole_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1, 2)
    flip(run / "step_00000002" / "config.json")
    with pytest.raises(
        UserError, match=r"config.json: SHA-256 differs; step_00000001 is whole.*--resume-from step_00000001"
    ):
        verify(run / "step_00000002", read_manifest(run / "step_00000002"))
    flip(run / "step_00000001" / "config.json")
    with pytest.raises(UserError, match="no older checkpoint of this run is whole"):
        verify(run / "step_00000002", read_manifest(run / "step_00000002"))


@pytest.mark.parametrize("name", ["step_00000009", "../run/step_00000002", "LATEST", ""])
def test_only_checkpoints_of_the_run_can_be_chosen(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run", 2)
    assert chosen(run, "step_00000002") == run / "step_00000002"
    with pytest.raises(UserError, match="complete ones: step_00000002"):
        chosen(run, name)
