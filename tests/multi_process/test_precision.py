"""Two ranks: fp16 follows one process in every layout, and all ranks take one decision whoever has the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Launch, launch

from tests.ms_models.train.run_helpers import write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("precision_worker.py")
RANKS = 2
# fp32: another order of additions, see test_zero.py. fp16: partial results are rounded before they are summed, too;
# see tests/ms_models/train/test_run_precision.py for one process.
TOLERANCE = {"fp32": 3e-6, "fp16": 4e-3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    root = tmp_path_factory.mktemp("precision")
    write_model(root / "model")
    write_data(root / "data")
    result = launch(WORKER, RANKS, root / "ranks", str(root), timeout=360)
    result.check(RANKS)
    return result


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize("layout", ["dp2 zero2", "dp2 zero3", "tp2", "pp2", "cp2"])
def test_steps_are_those_of_one_process(run: Launch, compute: str, layout: str) -> None:
    """Loss, gradient norm and size of the update, with groups that decay and learn differently."""
    for rank in run.ranks.values():
        found, expected = rank[compute][layout], rank[compute]["one"]
        assert [one["outcome"] for one in found] == ["updated"] * 3
        for mine, theirs in zip(found, expected, strict=True):
            for figure in ("loss", "grad_norm", "update_ratio"):
                assert mine[figure] == pytest.approx(theirs[figure], rel=10 * TOLERANCE[compute]), figure
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=TOLERANCE[compute])
    assert run.ranks[0][compute][layout] == run.ranks[1][compute][layout]
    assert run.ranks[0]["fp16"]["one"][0]["loss"] != run.ranks[0]["fp32"]["one"][0]["loss"]


def test_an_overflow_on_one_rank_is_one_on_all(run: Launch) -> None:
    for rank in run.ranks.values():
        half, full = rank["overflow"]["fp16"], rank["overflow"]["fp32"]
        assert (half["outcome"], half["loss_scale"], half["scale after"]) == ("overflow", 1024.0, 512.0)
        assert (full["outcome"], full["scale after"]) == ("non_finite", 1.0)
        assert not half["moved"] and not full["moved"]


def test_a_spike_on_one_rank_is_one_on_all(run: Launch) -> None:
    assert [rank["spike"]["outcome"] for rank in run.ranks.values()] == ["spike", "spike"]
    assert all(rank["spike"]["update_ratio"] is None for rank in run.ranks.values())


@pytest.mark.parametrize(("layout", "origin"), [("pp2", 1), ("tp2", 0), ("dp2 zero2", 0)])
def test_all_ranks_name_the_same_layer(run: Launch, layout: str, origin: int) -> None:
    first, second = (run.ranks[rank]["bad"][layout] for rank in range(RANKS))
    assert first["sentence"] == second["sentence"]
    assert first["sentence"].startswith("Weights are not finite: model.layers.1.mlp.down_proj.weight; kept in ")
    assert first["files"] == ["rank_0.json", "rank_0.npz", "rank_1.json", "rank_1.npz", "report.json"]
    activation: dict[str, Any] = first["report"]["activation"]
    assert activation["rank"] == origin
    assert activation["layer"].startswith("model.layers.1.mlp.down_proj") and activation["is_origin"]
    assert {name.split(".")[2] for name in first["report"]["gradients"] if ".layers." in name} == {"0", "1"}


def test_buckets_of_any_size_give_the_same_weights(run: Launch) -> None:
    for rank in run.ranks.values():
        few, many = rank["buckets"][1], rank["buckets"][0]
        assert few < many and rank["bucket weights are equal"]
        # ZeRO 2: a share of the sum after each of the four micro-batches, then the updated parameters.
        assert rank["calls"] == [5 * many, 5 * few]
