"""Two and four ranks against one process: logits, generation, compiled steps. `test_grid.py` has every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grid_models import SIZES, write_model
from harness import Launch, launch

from mappings.families import family_for_config

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(700)]

WORKER = Path(__file__).with_name("models_worker.py")
RANKS = 2
# Splitting a sum over ranks changes the order of fp32 additions, nothing else; measured here at most 1.6e-6.
TOLERANCE = 1e-5
COMPILED_DP = ("llama",)  # as in the worker
FAULT = 100  # a planted fault must exceed the tolerance this many times
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 4,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 9.0,
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        write_model(folder / name, {**SIZES, **config})
    return folder


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(WORKER, RANKS, tmp_path_factory.mktemp("pair"), "pair", str(models), timeout=600)
    result.check(RANKS)
    for name in MODELS:
        for case in result.ranks[0]["models"][name]["cases"]:
            show(f"{name} {case}", [result.ranks[rank]["models"][name]["cases"][case] for rank in range(RANKS)])
    return result


def show(name: str, cases: list[dict[str, Any]]) -> None:
    """Prints the largest errors over ranks, for the cards (`pytest -s`)."""
    worst = {key: max(case[key] for case in cases) for key in ("logits", "loss", "gradient") if key in cases[0]}
    print(name, ", ".join(f"{key} {value:.1e}" for key, value in worst.items()))


def test_every_rank_is_itself(run: Launch) -> None:
    assert [run.ranks[rank]["rank"] for rank in range(RANKS)] == [0, 1]


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("model", MODELS)
def test_layouts_equal_one_process(run: Launch, model: str, rank: int) -> None:
    found = run.ranks[rank]["models"][model]
    compiled = {"dp jit"} if model in COMPILED_DP else set()
    assert set(found["cases"]) == {"tp pynative", "tp jit", "dp pynative"} | compiled
    for name, case in found["cases"].items():
        assert case["count"] == 0, name
        assert case["loss"] < TOLERANCE, name
        assert case["parameters"] == found["parameters"] == len(family_parameters(model))
        assert case["gradient"] < TOLERANCE, (name, case)
        assert "dp" in name or case["logits"] < TOLERANCE, name


def family_parameters(model: str) -> list[Any]:
    config = {**SIZES, **MODELS[model]}
    return family_for_config(config).parameters(config)


def test_data_parallel_ranks_saw_unequal_numbers_of_tokens(run: Launch) -> None:
    counts = [run.ranks[rank]["models"]["llama"]["cases"]["dp jit"]["local count"] for rank in range(RANKS)]
    assert counts[1] > 2 * counts[0] > 0


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("model", MODELS)
def test_tensor_parallel_generation_gives_the_same_tokens(run: Launch, model: str, rank: int) -> None:
    assert run.ranks[rank]["models"][model]["same tokens"]


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_token_no_rank_holds_is_not_passed_over(run: Launch, rank: int) -> None:
    assert run.ranks[rank]["unknown token is NaN"]


@pytest.mark.parametrize("rank", range(RANKS))
def test_planted_faults_are_seen(run: Launch, rank: int) -> None:
    faults = run.ranks[rank]["faults"]
    assert set(faults) == {
        "forward all-reduce dropped",
        "backward all-reduce dropped",
        "gradient doubled",
        "gather in the wrong order",
        "dp all-reduce dropped",
        "local token count",
    }
    for name, case in faults.items():
        # A wrong gather of logits leaves loss and gradients alone; all others spoil a gradient.
        error = case["logits"] if name == "gather in the wrong order" else case["gradient"]
        assert error > FAULT * TOLERANCE, (name, case)
    for name in ("backward all-reduce dropped", "gradient doubled", "local token count"):
        assert faults[name]["loss"] < TOLERANCE, f"{name}: only gradients are wrong, a loss would not show it"


@pytest.mark.grid
def test_four_ranks_in_sub_groups_equal_one_process(models: Path, tmp_path: Path) -> None:
    result = launch(WORKER, 4, tmp_path, "grid", str(models))
    result.check(4)
    show("llama dp=2 tp=2", [result.ranks[rank]["case"] for rank in range(4)])
    for rank in range(4):
        found = result.ranks[rank]
        assert found["coordinates"] == {"tp": rank % 2, "cp": 0, "dp": rank // 2, "pp": 0}
        case = found["case"]
        assert case["count"] == 0 and case["loss"] < TOLERANCE
        assert case["parameters"] == found["parameters"]
        assert case["gradient"] < TOLERANCE, case
        assert found["fault"]["gradient"] > FAULT * TOLERANCE


def test_a_failing_rank_ends_the_launch_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "from harness import report\n"
        "from mappings.layout import ParallelLayout\n"
        "from ms_models.parallel.mesh import Mesh\n"
        "report(lambda: Mesh.from_environment(ParallelLayout(tp=4)))\n"
    )
    result = launch(script, RANKS, tmp_path / "run", timeout=120)
    assert result.exit_code != 0
    assert all("tp=4 needs 4 processes, 2 were started" in text for text in result.errors.values())
    assert result.errors and not result.ranks
