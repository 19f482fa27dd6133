"""The trainer of ms_models/compat on two ranks, against one process that accumulates the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Launch, launch
from hf_trainer_worker import rows, trained

RANKS = 2
pytestmark = [pytest.mark.grid, pytest.mark.multi_process]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("trainer")
    result = launch(Path(__file__).with_name("hf_trainer_worker.py"), RANKS, folder, str(folder / "out"))
    result.check(RANKS)
    return result


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rank 0 takes the first batch of every update, rank 1 the second."""
    return trained(tmp_path_factory.mktemp("alone"), gradient_accumulation_steps=RANKS)


def evaluation_loss(weight: Any) -> float:
    """transformers' mean over ranks: of each step the loss over the labels of all ranks, times the number of ranks, for
    every row; of the last one, whose batches are filled up from the beginning, only the one row that was left."""
    data = rows(5, 2)
    logits = np.stack([row["x"] for row in data]) @ np.array(weight)
    costs = np.log(np.exp(logits).sum(-1)) - logits[np.arange(5), [max(row["labels"], 0) for row in data]]
    counts = np.array([row["labels"] != -100 for row in data])
    losses: list[float] = []
    for batches, kept in (([[0, 1], [2, 3]], 4), ([[4, 0], [1, 2]], 1)):
        total = counts[[n for batch in batches for n in batch]].sum()
        shares = [(costs * counts)[batch].sum() / total * RANKS for batch in batches]
        losses += np.repeat(shares, 2).tolist()[:kept]
    return float(np.mean(losses))


def differences(found: Any, expected: Any) -> list[str]:
    assert [list(entry) for entry in found] == [list(entry) for entry in expected]
    pairs = [(key, a[key], b[key]) for a, b in zip(found, expected, strict=True) for key in b if key != "eval_loss"]
    return [f"{key} {a} {b}" for key, a, b in pairs if a != pytest.approx(b, rel=1e-5)]  # float32 sums in another order


def test_ranks_together_take_the_steps_of_one_process(run: Launch, alone: dict[str, Any]) -> None:
    for rank in range(RANKS):
        found = run.ranks[rank]["own"]
        assert differences(found["history"], alone["history"]) == []
        np.testing.assert_allclose(found["weight"], alone["weight"], rtol=1e-4, atol=1e-6)
        last = [entry["eval_loss"] for entry in found["history"] if "eval_loss" in entry][-1]
        assert last == pytest.approx(evaluation_loss(found["weight"]), rel=1e-5)
    rows = [entry["eval_rows"] for entry in alone["history"] if "eval_rows" in entry]
    assert rows == [5, 5]  # what the last batch took again from the beginning does not count


def test_means_of_each_rank_are_something_else(run: Launch, alone: dict[str, Any]) -> None:
    assert differences(run.ranks[0]["local"]["history"], alone["history"]) != []


def test_rank_0_writes_and_all_go_on(run: Launch) -> None:
    for rank in range(RANKS):
        found = run.ranks[rank]
        assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"} <= set(found["files"])
        assert {f"rng_state_mindspore_{n}.pth" for n in range(RANKS)} <= set(found["files"])
        np.testing.assert_allclose(found["resumed"], found["own"]["weight"], rtol=1e-6)
