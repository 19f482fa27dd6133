"""Two ranks against one process: encoders by logits, loss and every gradient, dropping the same values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Launch, launch
from safetensors.numpy import save_file
from test_models import FAULT, TOLERANCE, show

from mappings.families import family_for_config

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("encoders_worker.py")
RANKS = 2
SIZES = {
    "hidden_size": 40,
    "intermediate_size": 62,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 53,  # odd: one padding row on the last rank, in the decoder's bias too
    "layer_norm_eps": 1e-3,
    "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "architectures": ["BertForPreTraining"], "type_vocab_size": 2},
    "roberta": {"model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1, "tie_word_embeddings": False},
    "xlm_roberta": {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1},
}
CASES = {"tp", "tp with dropout", "tp with dropout, sequence parallel", "dp with dropout"}


def write_encoder(directory: Path, config: dict[str, Any]) -> None:
    """A Hugging Face directory with random weights, those of norms around 1.

    Around 0 they would leave attention next to even and its gradients ten thousand times below the others, where torch
    in fp32 is off by 2e-5 from itself in fp64; around 1 it is 1e-6, and so is one process here.
    """
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {}
    for parameter in family_for_config(config).parameters(config):
        values = rng.standard_normal(parameter.shape) * 0.15
        is_norm_weight = parameter.layer_class == "norm" and parameter.name.endswith("weight")
        weights[parameter.name] = (values + is_norm_weight).astype(np.float32)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("encoders")
    for name, config in MODELS.items():
        write_encoder(folder / name, {**SIZES, **config})
    result = launch(WORKER, RANKS, tmp_path_factory.mktemp("launch"), str(folder), timeout=300)
    result.check(RANKS)
    for name in MODELS:
        for case in sorted(CASES):
            show(f"{name} {case}", [result.ranks[rank]["models"][name][case] for rank in range(RANKS)])
    show("bert compiled", [result.ranks[rank]["compiled"] for rank in range(RANKS)])
    return result


def is_right(case: dict[str, Any]) -> bool:
    errors = [case[key] for key in ("logits", "loss", "gradient") if key in case]
    return len(errors) > 1 and all(error < TOLERANCE for error in errors) and case["parameters"] == 0


@pytest.mark.parametrize("rank", range(RANKS))
def test_two_ranks_equal_one_process(run: Launch, rank: int) -> None:
    found = run.ranks[rank]
    assert found["rank"] == rank
    assert set(found["models"]) == set(MODELS)
    for name, cases in found["models"].items():
        assert cases.pop("dropped") > 0.1, "dropout did next to nothing"
        assert set(cases) == CASES
        for case, figures in cases.items():
            assert is_right(figures), (name, case, figures)
    assert is_right(found["compiled"]), found["compiled"]


@pytest.mark.parametrize("rank", range(RANKS))
def test_planted_faults_are_seen(run: Launch, rank: int) -> None:
    faults = run.ranks[rank]["faults"]
    assert len(faults) == 5
    for name, case in faults.items():
        assert case["gradient"] > FAULT * TOLERANCE, (name, case)
        in_gradients_only = name in ("backward all-reduce dropped", "sequence parallel: norms not summed")
        assert (case["logits"] < TOLERANCE) == in_gradients_only, (name, case)
