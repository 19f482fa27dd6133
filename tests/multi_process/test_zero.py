"""ZeRO on two ranks against one process: gradients, norm, moments, weights, checkpoints, and what a rank keeps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_models import SIZES, config_of, write_model
from harness import Launch, launch

from mappings.layout import ParallelLayout
from migrate.weights.command import reshard
from tests.ms_models.train.run_helpers import read_tensors

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("zero_worker.py")
RANKS = 2
# Splitting a sum over ranks changes the order of fp32 additions, nothing else. Measured: moments 1.2e-6 (they hold
# squares), gradients 5.2e-7, weights 3e-8, loss and norm 1.1e-7.
TOLERANCE = 3e-6
FAULT = 100  # a planted fault must exceed the tolerance this many times
# Rows that two ranks do not divide wherever the arithmetic of attention allows it.
ODD = {
    **SIZES, "model_type": "llama", "hidden_size": 21, "intermediate_size": 19, "num_attention_heads": 3,
    "num_key_value_heads": 1, "num_hidden_layers": 2, "attention_bias": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zero")
    write_model(root / "odd", ODD)
    write_model(root / "experts", {**config_of("mixtral"), "num_hidden_layers": 1})
    return root


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(WORKER, RANKS, tmp_path_factory.mktemp("ranks"), str(folder), timeout=300)
    result.check(RANKS)
    return result


def ranks(run: Launch, part: str) -> list[dict[str, Any]]:
    assert [run.ranks[rank]["rank"] for rank in range(RANKS)] == [0, 1]
    return [run.ranks[rank][part] for rank in range(RANKS)]


@pytest.mark.parametrize("case", ["zero1", "zero2 jit", "zero3", "zero3 experts"])
def test_two_steps_are_those_of_one_process(run: Launch, case: str) -> None:
    for cases in ranks(run, "cases"):
        found = cases[case]
        for kind in ("gradients", "norm", "states", "weights", "loss", "second"):
            assert found[kind] < TOLERANCE, (kind, found)


def test_a_rank_keeps_half(run: Launch) -> None:
    for cases in ranks(run, "cases"):
        zero1, zero2, zero3 = cases["zero1"], cases["zero2 jit"], cases["zero3"]
        whole = zero1["elements"]
        padded = whole + zero1["padding"]
        assert 0 < zero1["padding"] < whole / 10
        assert zero1["of a moment"] == padded // 2 and zero1["of gradients"] == padded
        assert zero2["of a moment"] == zero2["of gradients"] == padded // 2
        assert zero1["of weights"] == zero2["of weights"] == whole
        assert zero3["of a moment"] == zero3["of gradients"] == zero3["of kept weights"] == padded // 2
        assert zero3["of weights"] == zero3["parameters"], "a single element of each is left"


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_tensors_smaller_than_the_group_and_scalars(run: Launch, dtype: str) -> None:
    states = ["exp_avg", "exp_avg_sq"] + (["master"] if dtype == "fp16" else [])
    shapes = {"odd": [3, 3], "even": [2, 2], "row": [1, 3], "one": [1], "bias": [2], "s": []}
    for found in ranks(run, "shapes"):
        assert max(found[dtype][kind] for kind in ("weights", "states", "norms")) < TOLERANCE, found[dtype]
        assert found[dtype]["kept"] == {f"{state}.{name}": shape for state in states for name, shape in shapes.items()}


def test_planted_faults_are_seen(run: Launch) -> None:
    for faults in ranks(run, "faults"):
        assert faults["norm counted twice"]["norm"] == pytest.approx(math.sqrt(2) - 1, rel=1e-5)
        assert faults["gradients not summed"]["norm"] > FAULT * TOLERANCE
        for name in ("update of the wrong rows", "gather forgotten"):
            assert faults[name]["weights"] > FAULT * TOLERANCE, name
            assert faults[name]["norm"] < TOLERANCE, "the gradients were right"


@pytest.mark.parametrize("model", ["odd", "experts"])
def test_a_checkpoint_comes_back_and_goes_to_one_process(run: Launch, folder: Path, model: str, tmp_path: Path) -> None:
    for found in ranks(run, "saved"):
        assert found[model] == {"same states": True, "next": True}
    saved = folder / f"saved {model}"
    assert reshard(saved / "step_00000001", tmp_path / "one", layout=ParallelLayout()).exit_code == 0
    states = read_tensors(tmp_path / "one" / "optimizer-rank00000.safetensors")
    expected = np.load(saved / "states.npz")
    if model == "odd":
        assert set(states) == set(expected)
        for name in states:
            assert np.linalg.norm(states[name] - expected[name]) <= TOLERANCE * np.linalg.norm(expected[name]), name
    else:
        name = "exp_avg_sq.model.layers.0.block_sparse_moe.experts.3.w2.weight"
        stacked = next(value for key, value in expected.items() if key.startswith("exp_avg_sq") and "down" in key)
        assert np.linalg.norm(states[name] - stacked[3]) <= TOLERANCE * np.linalg.norm(stacked[3])
