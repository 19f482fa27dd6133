"""Blended sources: shares, order, layouts, resuming, epochs; and what does not go together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mappings.errors import UserError
from ms_models.data.blend import BLOCK, BlendedOrder, described
from ms_models.data.loader import TrainingLoader, validation_batches
from ms_models.data.records import PreparedData
from ms_models.train.config import load
from ms_models.train.launch.checks.stream import documents_are_kept_apart, source_epochs, sources_suffice
from tests.ms_models.data import data_helpers
from tests.ms_models.train.run_helpers import SEQ_LENGTH, write_config, write_data

Parts = tuple[tuple[Path, float], ...]
ROWS = (37, 11, 20)
WEIGHTS = (5.0, 3.0, 2.0)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Three directories with other rows each."""
    root = tmp_path_factory.mktemp("blend")
    return tuple(
        (write_data(root / f"{number}", train=rows, validation=4 - number, seed=10 * number), weight)
        for number, (rows, weight) in enumerate(zip(ROWS, WEIGHTS, strict=True))
    )


def order(seed: int = 3, weights: tuple[float, ...] = WEIGHTS) -> BlendedOrder:
    return BlendedOrder(ROWS, weights, seed)


def test_shares_are_the_weights_everywhere() -> None:
    sources, rows = order()[np.arange(3 * BLOCK)]
    assert (np.bincount(sources) / len(sources)).tolist() == pytest.approx([0.5, 0.3, 0.2], abs=1 / BLOCK)
    for start in range(0, 2 * BLOCK, 997):  # also in any hundred positions, about
        part = np.bincount(sources[start : start + 100], minlength=3)
        assert np.abs(part - [50, 30, 20]).max() <= 4
    assert rows.min() == 0 and (rows < np.array(ROWS)[sources]).all()


def test_each_source_is_read_epoch_by_epoch_in_another_order() -> None:
    sources, rows = order()[np.arange(2000)]
    for number, count in enumerate(ROWS):
        own = rows[sources == number].tolist()
        assert len(own) > 3 * count
        for epoch in range(3):
            assert sorted(own[epoch * count : (epoch + 1) * count]) == list(range(count))
        assert own[:count] != own[count : 2 * count]
    other = order(seed=4)[np.arange(2000)]
    assert not np.array_equal(sources, other[0]) and not np.array_equal(rows, other[1])


def test_any_position_stands_alone() -> None:
    whole = order()[np.arange(4 * BLOCK)]
    chosen = np.random.default_rng(0).integers(0, 4 * BLOCK, (50, 3))
    found = order()[chosen]
    assert np.array_equal(found[0], whole[0][chosen]) and np.array_equal(found[1], whole[1][chosen])
    for position in (0, 1, 999, BLOCK, 3 * BLOCK + 17):
        assert order().drawn(position) == np.bincount(whole[0][:position], minlength=3).tolist()


def test_the_order_of_a_blend_is_kept_by_later_versions() -> None:
    sources, rows = BlendedOrder([5, 7], [2, 1], 1)[np.arange(12)]
    assert sources.tolist() == FIXED[0]
    assert rows.tolist() == FIXED[1]


FIXED = ([1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0], [2, 4, 0, 5, 1, 2, 3, 4, 1, 6, 4, 0])


def test_small_weights_still_get_a_place_and_one_source_is_as_it_was() -> None:
    assert order(weights=(1.0, 1e-9, 1e-9)).shares.tolist() == [BLOCK - 2, 1, 1]
    positions = np.arange(100)
    from ms_models.data.order import SampleOrder

    assert np.array_equal(BlendedOrder([37], [0.3], 5)[positions][1], SampleOrder(37, 5)[positions])


def read(parts: Parts, steps: int, dp: int, position: int = 0, prefetch: int = 2) -> list[np.ndarray]:
    """Rows of each step, `[8, S]`, in the order of the stream."""
    loaders = [
        TrainingLoader(
            parts, seed=3, micro_batch_size=2, accumulation=4 // dp, dp=dp, dp_rank=rank, position=position,
            prefetch=prefetch,
        )
        for rank in range(dp)
    ]  # fmt: skip
    found = []
    for _ in range(steps):
        ranks = [loader.next_step() for loader in loaders]
        found.append(np.concatenate([ranks[i % dp][i // dp]["input_ids"] for i in range(4)]))
    for loader in loaders:
        loader.close()
    return found


def test_layouts_and_resumed_runs_see_the_same_stream(parts: Parts) -> None:
    one = read(parts, 12, 1)
    assert np.array_equal(one, read(parts, 12, 2))
    assert np.array_equal(one[5:], read(parts, 7, 4, position=5 * 8))
    assert np.array_equal(one, read(parts, 12, 1, prefetch=0))
    written = [data_helpers.rows(directory, "train") for directory, _ in parts]
    sources, rows = BlendedOrder(ROWS, WEIGHTS, 3)[np.arange(96)]
    for found, source, row in zip(np.concatenate(one), sources, rows, strict=True):
        assert np.array_equal(found, written[source][row]["input_ids"])


def test_the_state_says_what_each_source_gave_and_refuses_other_weights(parts: Parts) -> None:
    loader = TrainingLoader(parts, seed=3, micro_batch_size=2, accumulation=4)
    for _ in range(3):
        loader.next_step()
    state = loader.state()
    assert state["position"] == 24 and sum(state["drawn"]) == 24
    assert state["drawn"] == np.bincount(BlendedOrder(ROWS, WEIGHTS, 3)[np.arange(24)][0], minlength=3).tolist()
    TrainingLoader.check_state(state, described(parts), 3)
    changed = (*parts[:2], (parts[2][0], 2.5))
    with pytest.raises(UserError, match=r"weights of data.blend were \[5.0, 3.0, 2.0\], now they are \[5.0, 3.0, 2.5"):
        TrainingLoader.check_state(state, described(changed), 3)
    with pytest.raises(UserError, match="not the one the run began with"):
        TrainingLoader.check_state(state, described(parts[:2]), 3)
    other = TrainingLoader(parts, seed=3, micro_batch_size=4, accumulation=1, dp=2, dp_rank=1)
    other.next_step()
    other.load_state(state)
    expected = np.concatenate([batch["input_ids"] for batch in loader.next_step()])[4:]
    assert np.array_equal(other.next_step()[0]["input_ids"], expected)


def test_validation_rows_of_all_sources_come_in_turn(parts: Parts) -> None:
    batches = list(validation_batches(parts, micro_batch_size=1))
    assert len(batches) == 4 + 3 + 2
    alone = [list(validation_batches(directory, micro_batch_size=1)) for directory, _ in parts]
    expected = [alone[s][r] for r in range(4) for s in range(3) if r < len(alone[s])]
    for batch, other in zip(batches, expected, strict=True):
        assert all(np.array_equal(batch[name], other[name]) for name in batch)
    limited = list(validation_batches(parts, micro_batch_size=2, limit=3))
    assert np.array_equal(
        np.concatenate([b["input_ids"] for b in limited])[:3], [b["input_ids"][0] for b in batches[:3]]
    )
    assert (limited[1]["labels"][1] == -100).all()


def test_what_does_not_go_together_is_refused(parts: Parts, tmp_path: Path) -> None:
    write_data(tmp_path / "other")
    for change, message in (
        ({"seq_length": SEQ_LENGTH + 1}, "cannot be blended with .*: sequences of 13 against 12; prepare it anew"),
        ({"tokenizer": {"sha256": "x"}}, "tokenizer x against none"),
        ({"isolates": True}, "separated documents True against False"),
    ):
        replace(PreparedData.read(parts[0][0]), splits=PreparedData.read(tmp_path / "other").splits, **change).write(
            tmp_path / "other"
        )
        with pytest.raises(UserError, match=message):
            described((parts[0], (tmp_path / "other", 1.0)))


def config_of(parts: Parts, tmp_path: Path, **data: Any) -> Any:
    path = write_config(tmp_path / "run.yaml", tmp_path, tmp_path, tmp_path / "run")
    body = yaml.safe_load(path.read_text())
    blend = [{"path": str(directory), "weight": weight} for directory, weight in parts]
    path.write_text(yaml.safe_dump({**body, "data": {"blend": blend, **data}}))
    return load(path)


def test_epochs_of_each_source_are_told_and_bounded(parts: Parts, tmp_path: Path) -> None:
    config = config_of(parts, tmp_path)
    assert config.data_parts == parts
    data = described(parts)
    drawn = BlendedOrder(ROWS, WEIGHTS, 5).drawn(48)
    expected = {str(directory): n / own for (directory, _), n, own in zip(parts, drawn, ROWS, strict=True)}
    assert source_epochs(config, data) == expected
    assert sources_suffice(config, None, data).startswith("epochs: ")
    with pytest.raises(UserError, match=r"/1: the run would read it 1\.\d\d times, data\.max_epochs is 1;"):
        sources_suffice(config_of(parts, tmp_path, max_epochs=1.0), None, data)
    with pytest.raises(UserError, match=r"'data\.blend\[1\]\.weight' must be above 0, found 0"):
        config_of((parts[0], (parts[1][0], 0.0)), tmp_path)
    with pytest.raises(UserError, match=r"give one of 'data\.path'"):
        config_of(parts, tmp_path, path="x")


def test_numbered_documents_need_a_model_that_reads_them(parts: Parts, tmp_path: Path) -> None:
    class Encoder:
        class family:
            architectures = ("BertForMaskedLM",)

    class Decoder:
        class family:
            architectures = ("LlamaForCausalLM",)

    config, data = config_of(parts, tmp_path), described(parts)
    apart = replace(data, isolates=True, packing="fit")
    assert "see each other" in documents_are_kept_apart(config, Encoder, data)
    assert "do not see each other" in documents_are_kept_apart(config, Decoder, apart)
    with pytest.raises(UserError, match="packing=fit, whose attention mask numbers documents; encoders do not read"):
        documents_are_kept_apart(config, Encoder, apart)
