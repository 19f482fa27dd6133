"""Saves beside training: what is written is what the step had, on all ranks or on none, and never two at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.train.checkpoints import checkpoint, saver, writing
from ms_models.train.checkpoints.recovery import verify
from ms_models.train.checkpoints.run_directory import find_latest, read_manifest
from ms_models.train.checkpoints.saver import Saver
from ms_models.train.checkpoints.states import restore
from ms_models.train.checkpoints.writing import Contents
from ms_models.train.config import CheckpointConfig
from ms_models.train.step import Trainer
from tests.ms_models.train.checkpoint_helpers import begin, make_saver, make_trainer, save, step, steps
from tests.ms_models.train.run_helpers import write_data, write_model


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("saver")
    return write_model(root / "model"), write_data(root / "data")


@pytest.fixture(scope="module")
def trainer(paths: tuple[Path, Path]) -> Trainer:
    return make_trainer(paths[0])


class Gate:
    """Holds back the thread that writes until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._event, self._write = threading.Event(), writing.write
        monkeypatch.setattr(writing, "write", self)

    def __call__(self, path: Path, *pieces: Any) -> Any:
        assert self._event.wait(60)
        return self._write(path, *pieces)

    def open(self) -> None:
        self._event.set()


def contents_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("is_copied", [True, False])
def test_training_goes_on_beside_and_changes_nothing(
    trainer: Trainer, paths: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    """Byte for byte what a save that training waits for writes; the planted fault is a snapshot that is none."""
    step(trainer, paths[1])
    expected = contents_of(save(tmp_path / "waited", 3, trainer, asynchronous=False))
    gate = Gate(monkeypatch)
    if not is_copied:
        contents = checkpoint.contents
        monkeypatch.setattr(checkpoint, "contents", lambda *args, copy: contents(*args, copy=False))
    beside = make_saver(tmp_path / "beside", asynchronous=True)
    begin(beside, 3, trainer)
    assert beside.pending == 3
    step(trainer, paths[1], 4)
    assert beside.poll() == []
    assert steps(tmp_path / "beside") == []
    gate.open()
    (saved,) = beside.finish()
    assert beside.pending is None
    found = contents_of(saved.directory)
    assert set(found) == set(expected)
    assert ({name for name in expected if found[name] != expected[name]} == set()) == is_copied


def test_what_a_save_took_is_measured(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    beside = make_saver(tmp_path, asynchronous=True)
    begin(beside, 1, trainer)
    time.sleep(0.5)
    gate.open()
    while not (done := beside.poll()):
        time.sleep(0.01)
    record = done[0].record()
    assert record["step"] == 1
    assert record["checkpoint_s"] >= 0.5 > record["checkpoint_blocked_s"] > 0
    on_disk = sum(path.stat().st_size for path in done[0].directory.iterdir() if path.name != "manifest.json")
    assert record["checkpoint_bytes"] == on_disk


def test_there_are_never_two_saves_at_once(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    beside = make_saver(tmp_path, asynchronous=True)
    begin(beside, 1, trainer)
    with pytest.raises(AssertionError, match="never two"):
        begin(beside, 2, trainer)
    gate.open()
    beside.finish()


def test_a_defect_in_the_thread_is_raised_where_training_is(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(writing, "write", defect)
    beside = make_saver(tmp_path, asynchronous=True)
    begin(beside, 1, trainer)
    with pytest.raises(ZeroDivisionError):
        beside.finish()


def test_the_checkpoint_a_run_came_from_may_go(trainer: Trainer, paths: tuple[Path, Path], tmp_path: Path) -> None:
    """Retention removes it in time; configuration and tokenizer come along all the same."""
    first = save(tmp_path, 1, trainer)
    (first / "random-rank00007.json").write_text("{}")  # of a run with more ranks
    (first / "tokenizer.json").write_text("{}")
    resumed = make_trainer(first)
    side = checkpoint.side_files(resumed)
    assert set(side) == {"config.json", "tokenizer.json"}, "nothing that belongs to a rank"
    beside = make_saver(tmp_path)
    for number in (2, 3, 4):
        training = {"step": number, "tokens": 0, "optimizer_step": 0, "config": {}}
        beside.begin(number, checkpoint.contents(resumed, side, copy=False), training, time.perf_counter())
        beside.finish()
    assert not first.exists()
    assert json.loads((tmp_path / "step_00000004" / "config.json").read_text())["model_type"] == "llama"


def test_permanent_ones_stay_also_across_restarts(trainer: Trainer, tmp_path: Path) -> None:
    for number in range(1, 8):
        save(tmp_path, number, trainer, every=1, permanent_every=3)  # each time as after a restart
    assert steps(tmp_path) == [3, 6, 7]
    save(tmp_path, 8, trainer, every=1, permanent_every=3)
    assert steps(tmp_path) == [3, 6, 7, 8]


@pytest.mark.parametrize(("every", "permanent_every"), [(0, 4), (3, 4)])
def test_a_permanent_one_that_would_never_be_saved_is_refused(every: int, permanent_every: int) -> None:
    with pytest.raises(UserError, match="must be a multiple of"):
        CheckpointConfig(every=every, permanent_every=permanent_every)


class Ranks:
    """Savers of several ranks in threads, which agree as those of a run do."""

    def __init__(self, run: Path, count: int) -> None:
        self.flags: dict[int, bool] = {}
        self.barrier = threading.Barrier(count)
        self.savers = [
            Saver(run, rank, ParallelLayout(dp=count, zero=1), "llama", CheckpointConfig(), self._agree(rank))
            for rank in range(count)
        ]

    def _agree(self, rank: int) -> Callable[[bool], bool]:
        def agree(flag: bool) -> bool:
            self.flags[rank] = flag
            self.barrier.wait(30)
            result = any(self.flags.values())
            self.barrier.wait(30)
            return result

        return agree

    def run(self, work: Callable[[Saver], Any]) -> list[Any]:
        results: list[Any] = [None] * len(self.savers)

        def call(rank: int) -> None:
            try:
                results[rank] = work(self.savers[rank])
            except UserError as error:
                results[rank] = error

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(len(self.savers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "ranks wait for each other for ever"
        return results


def start(one: Saver, number: int = 1) -> None:
    tensors = {f"optimizer-rank{one.rank:05d}.safetensors": {"exp_avg.w": np.full(3, one.rank, np.float32)}}
    if one.rank == 0:
        tensors["model-rank00000.safetensors"] = {"w": np.ones(3, np.float32)}
    small = {f"random-rank{one.rank:05d}.json": b"{}"}
    one.begin(number, Contents(tensors, small), {"step": number}, time.perf_counter())


def test_a_checkpoint_is_complete_when_the_slowest_rank_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, event, write = Ranks(tmp_path, 3), threading.Event(), writing.write

    def slow(path: Path, *pieces: Any) -> Any:
        assert "rank00002" not in path.name or event.wait(60)
        return write(path, *pieces)

    monkeypatch.setattr(writing, "write", slow)
    ranks.run(start)
    assert ranks.run(lambda one: one.poll()) == [[], [], []]
    assert steps(tmp_path) == []
    event.set()
    assert [found[0].step for found in ranks.run(lambda one: one.finish())] == [1, 1, 1]
    directory = find_latest(tmp_path)
    verify(directory, read_manifest(directory))
    assert len(read_manifest(directory).files) == 7
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        [*read_manifest(directory).files, "manifest.json"]
    )


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_cannot_write_is_everybodys_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, victim: int
) -> None:
    ranks, write, calls = Ranks(tmp_path, 3), writing.write, []

    def full(path: Path, *pieces: Any) -> Any:
        if path.name == f"optimizer-rank{victim:05d}.safetensors" and ".step_00000002.tmp" in str(path):
            calls.append(path)
            if len(calls) <= failures:
                raise OSError(28, "No space left on device", str(path))
        return write(path, *pieces)

    monkeypatch.setattr(writing, "write", full)
    ranks.run(start)
    ranks.run(lambda one: one.finish())
    ranks.run(lambda one: start(one, 2))
    found = ranks.run(lambda one: one.finish())
    if failures == 1:
        assert [saved[0].step for saved in found] == [2, 2, 2]
        verify(find_latest(tmp_path), read_manifest(find_latest(tmp_path)))
        return
    assert all(isinstance(error, UserError) for error in found), found
    assert "No space left on device" in str(found[victim])
    assert find_latest(tmp_path).name == "step_00000001"
    verify(find_latest(tmp_path), read_manifest(find_latest(tmp_path)))


def test_files_that_shrink_behind_the_writers_back_are_found(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As network file systems do whose quota ends."""
    write_manifest = saver.write_manifest

    def shrink(staging: Path, *rest: Any) -> None:
        path = staging / "optimizer-rank00000.safetensors"
        path.write_bytes(path.read_bytes()[:-4])
        write_manifest(staging, *rest)

    monkeypatch.setattr(saver, "write_manifest", shrink)
    with pytest.raises(UserError, match=r"could not be saved.*bytes are there of"):
        save(tmp_path, 1, trainer)


class Counter:
    """Plain state."""

    def __init__(self) -> None:
        self.count = 0

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state(self, state: Any) -> None:
        self.count = state["count"]


def test_state_by_name_comes_back_and_must_match() -> None:
    counter = Counter()
    restore({"a": counter}, {"step": 3, "config": {}, "a": {"count": 7}}, "here")
    assert counter.count == 7
    with pytest.raises(UserError, match=r"here: .*b is missing"):
        restore({"a": counter, "b": counter}, {"a": {"count": 7}}, "here")
    with pytest.raises(UserError, match="c is unexpected"):
        restore({"a": counter}, {"a": {"count": 7}, "c": {}}, "here")
