"""The loader: every layout sees the same global batches, nothing twice in an epoch, and any position can be resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mappings.errors import UserError
from ms_models.data.loader import Batch, TrainingLoader, validation_batches
from ms_models.data.order import SampleOrder, batch_positions
from ms_models.data.packing import IGNORED
from ms_models.data.records import PreparedData
from tests.ms_models.train.run_helpers import make_rows, write_data

ROWS = 37
GLOBAL = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("loader") / "data", train=ROWS, validation=5)


def read(
    data: Path, steps: int, dp: int = 1, position: int = 0, seed: int = 3, micro: int = 2
) -> list[list[list[Batch]]]:
    """By step, by rank, the micro-batches."""
    loaders = [
        TrainingLoader(
            data,
            seed=seed,
            micro_batch_size=micro,
            accumulation=GLOBAL // dp // micro,
            dp=dp,
            dp_rank=rank,
            position=position,
        )
        for rank in range(dp)
    ]
    return [[loader.next_step() for loader in loaders] for _ in range(steps)]


def names(batches: list[list[Batch]]) -> list[int]:
    """Row numbers of one step (the first token of a row is its number)."""
    return [int(number) for rank in batches for batch in rank for number in batch["input_ids"][:, 0]]


def test_rows_arrive_as_they_were_written(data: Path) -> None:
    written = make_rows(ROWS, 0)
    (step,) = read(data, 1)
    for batch in step[0]:
        for field in ("input_ids", "attention_mask", "labels"):
            assert batch[field].dtype == np.int32
            for row, number in zip(batch[field], batch["input_ids"][:, 0], strict=True):
                assert np.array_equal(row, written[number][field])


@pytest.mark.parametrize("dp", [2, 4])
def test_every_layout_sees_the_same_global_batches_over_an_epoch_border(data: Path, dp: int) -> None:
    steps = 2 * ROWS // GLOBAL
    one, several = read(data, steps), read(data, steps, dp)
    for alone, together in zip(one, several, strict=True):
        assert sorted(names(alone)) == sorted(names(together))
        # the micro-batches themselves are the same, dealt out in turn
        micro = [batch["input_ids"] for batch in alone[0]]
        dealt = [together[i % dp][i // dp]["input_ids"] for i in range(len(micro))]
        assert all(np.array_equal(a, b) for a, b in zip(micro, dealt, strict=True))


def test_an_epoch_holds_every_row_once_and_the_next_is_in_another_order(data: Path) -> None:
    sequence = [number for step in read(data, 3 * ROWS // GLOBAL + 1, dp=2) for number in sorted(names(step))]
    flat = [n for step in read(data, 3 * ROWS // GLOBAL + 1) for n in names(step)]
    assert sorted(flat[:ROWS]) == list(range(ROWS))
    assert sorted(flat[ROWS : 2 * ROWS]) == list(range(ROWS))
    assert flat[:ROWS] != flat[ROWS : 2 * ROWS]
    assert sorted(sequence) == sorted(flat)
    assert names(read(data, 1, seed=4)[0]) != flat[:GLOBAL]


@pytest.mark.parametrize("after", [1, 4, 5, 9])
@pytest.mark.parametrize("dp", [1, 2])
def test_any_position_can_be_resumed_exactly(data: Path, after: int, dp: int) -> None:
    whole = read(data, 12, dp)
    resumed = read(data, 12 - after, dp, position=after * GLOBAL)
    assert [names(step) for step in resumed] == [names(step) for step in whole[after:]]


def test_state_is_the_position_and_refuses_other_data(data: Path, tmp_path: Path) -> None:
    loader = TrainingLoader(data, seed=3, micro_batch_size=2, accumulation=2, dp=2, dp_rank=1)
    loader.next_step()
    state, description = loader.state(), PreparedData.read(data)
    assert state["position"] == loader.position == GLOBAL
    TrainingLoader.check_state(state, description, 3)
    with pytest.raises(UserError, match=r"train\.seed was 3, now it is 4"):
        TrainingLoader.check_state(state, description, 4)
    other = PreparedData.read(write_data(tmp_path / "other", train=ROWS + 1))
    with pytest.raises(UserError, match="not the one the run began with"):
        TrainingLoader.check_state(state, other, 3)
    train = description.splits["train"]
    shards = {name: replace(record, sha256="0") for name, record in train.files.items()}
    changed = replace(description, splits={**description.splits, "train": replace(train, files=shards)})
    with pytest.raises(UserError, match="not the one the run began with"):
        TrainingLoader.check_state(state, changed, 3)


@pytest.mark.parametrize(("micro", "dp"), [(1, 1), (2, 1), (2, 2), (3, 2), (7, 3)])
def test_validation_rows_are_read_once_by_all_ranks_together(data: Path, micro: int, dp: int) -> None:
    valid = [int((row["labels"][1:] != IGNORED).sum()) for row in make_rows(5, 1)]
    batches = [list(validation_batches(data, micro_batch_size=micro, dp=dp, dp_rank=rank)) for rank in range(dp)]
    counts = [int((b["labels"][:, 1:] != IGNORED).sum()) for rank in batches for b in rank]
    assert sum(counts) == sum(valid)
    assert {b["labels"].shape[0] for rank in batches for b in rank} == {micro}
    some = list(validation_batches(data, micro_batch_size=micro, limit=2))
    assert sum(int((b["labels"][:, 1:] != IGNORED).sum()) for b in some) == sum(valid[:2])


def test_positions_of_the_ranks_tile_the_stream() -> None:
    found = [batch_positions(16, 3, micro_batch_size=2, accumulation=2, dp=2, dp_rank=rank) for rank in range(2)]
    assert found[0].shape == (3, 2, 2)
    assert sorted(np.concatenate(found, axis=None)) == list(range(16, 16 + 24))
    assert found[1][0].tolist() == [[18, 19], [22, 23]]


def test_the_order_depends_on_nothing_but_seed_and_rows() -> None:
    # Fixed numbers: a run resumed by a later version must find the order it began with.
    assert SampleOrder(7, 1)[np.arange(14)].tolist() == [5, 0, 1, 4, 2, 6, 3, 6, 1, 4, 0, 3, 2, 5]
