"""Reading ahead: nothing is lost, nothing runs away, errors come where they belong, and the thread ends."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mappings.errors import UserError
from ms_models.data.loader import TrainingLoader
from ms_models.data.prefetch import Prefetcher
from tests.ms_models.train.run_helpers import write_data


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_until(holds: object, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_items_come_in_order_and_no_more_than_a_few_are_made_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    ahead = Prefetcher(items(), 3)  # type: ignore[arg-type]
    wait_until(lambda: len(made) == 4)  # three wait, one is held
    time.sleep(0.05)
    assert len(made) == 4
    assert next(ahead) == 0
    wait_until(lambda: len(made) == 5)
    assert list(ahead) == list(range(1, 50))
    with pytest.raises(StopIteration):
        next(ahead)
    wait_until(lambda: not threads())


def test_an_error_comes_where_its_item_would_have_been() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise UserError("three is bad")

    ahead = Prefetcher(items(), 4)  # type: ignore[arg-type]
    assert [next(ahead), next(ahead)] == [1, 2]
    for _ in range(2):
        with pytest.raises(UserError, match="three is bad"):
            next(ahead)


def test_the_thread_ends_when_closed_and_when_forgotten() -> None:
    closed: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append("yes")

    ahead = Prefetcher(items(), 2)  # type: ignore[arg-type]
    next(ahead)
    ahead.close()
    assert not threads() and closed == ["yes"]
    with pytest.raises(StopIteration):
        next(ahead)
    forgotten = Prefetcher(items(), 2)  # type: ignore[arg-type]
    next(forgotten)
    assert len(threads()) == 1
    del forgotten
    gc.collect()
    assert not threads() and closed == ["yes", "yes"]


def test_a_loaders_state_is_what_was_taken_not_what_was_read(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    ahead = TrainingLoader(data, seed=3, micro_batch_size=2, prefetch=4)
    plain = TrainingLoader(data, seed=3, micro_batch_size=2, prefetch=0)
    for step in range(30):
        assert ahead.state()["position"] == 2 * step
        found, expected = ahead.next_step(), plain.next_step()
        assert all(np.array_equal(found[0][name], expected[0][name]) for name in expected[0])
    state = ahead.state()
    following = plain.next_step()
    ahead.next_step()
    ahead.load_state(state)
    assert np.array_equal(ahead.next_step()[0]["input_ids"], following[0]["input_ids"])
    ahead.close()
    assert not threads()


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    shard = sorted(data.glob("train-*.mindrecord"))[0]
    raw = shard.read_bytes()
    shard.write_bytes(bytes(len(raw)))
    loader = TrainingLoader(data, seed=3, micro_batch_size=2)
    with pytest.raises(UserError, match=r"a shard cannot be read .* see `msmigrate data --verify"):
        for _ in range(20):
            loader.next_step()
