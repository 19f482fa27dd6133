"""DeepSeek-V3 on two ranks against one process: loss, every gradient, norm, updated weights, loss of the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grid_models import SIZES, write_model
from grid_worker import write_reference
from harness import Launch, launch
from mla_worker import CASES

from mappings.families import family_for_config

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(1500)]

WORKER = Path(__file__).with_name("mla_worker.py")
RANKS = 2
# The order of fp32 additions alone, as in the grid.
TOLERANCES = {"loss": 1e-6, "second": 1e-6, "norm": 1e-6, "gradients": 2e-5, "weights": 1e-6}
FAULT = 100  # a planted fault must exceed a tolerance this many times
LATENT: dict[str, Any] = {
    **SIZES,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
MODELS: dict[str, dict[str, Any]] = {
    "deep": {
        **LATENT,
        "q_lora_rank": 12,
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        "rope_parameters": YARN,
    },
    "plain": {**LATENT, "q_lora_rank": None, "tie_word_embeddings": True, "num_nextn_predict_layers": 0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("mla")
    for name, config in MODELS.items():
        write_model(folder / "models" / name, config)
        write_reference(folder / "models" / name)
    result = launch(WORKER, RANKS, folder / "run", str(folder / "models"), timeout=1200)
    result.check(RANKS)
    for case in CASES:
        worst = {key: max(result.ranks[rank]["cases"][case.name][key] for rank in range(RANKS)) for key in TOLERANCES}
        print(f"{case.name}:", ", ".join(f"{key} {value:.1e}" for key, value in worst.items()))
    return result


def test_every_layout_equals_one_process(run: Launch) -> None:
    wrong = []
    for rank in range(RANKS):
        assert list(run.ranks[rank]["cases"]) == [case.name for case in CASES]
        for name, found in run.ranks[rank]["cases"].items():
            assert found["tokens"] == 0, (rank, name, found)
            wrong += [(rank, name, key, found) for key, limit in TOLERANCES.items() if not found[key] < limit]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(("case", "model"), [("tp2", "deep"), ("tp2 plain queries, tied", "plain")])
def test_every_parameter_is_compared(run: Launch, case: str, model: str) -> None:
    config = MODELS[model]
    corrections = "e_score_correction_bias"  # have no gradient
    names = [spelled.name for spelled in family_for_config(config).spelling(config, "hf_fused")]
    expected = len([name for name in names if not name.endswith(corrections)])
    assert [run.ranks[rank]["cases"][case]["parameters"] for rank in range(RANKS)] == [expected] * RANKS


def test_planted_faults_are_seen(run: Launch) -> None:
    for rank in range(RANKS):
        faults = run.ranks[rank]["faults"]
        assert set(faults) == {"latents not entered", "shared key not entered"}
        for name, found in faults.items():
            assert found["gradients"] > FAULT * TOLERANCES["gradients"], (name, found)
            assert found["loss"] < TOLERANCES["loss"], f"{name}: only gradients are wrong, a loss would not show it"
            assert "kv_a_proj_with_mqa" in found["worst of gradients"] or name == "latents not entered", found
