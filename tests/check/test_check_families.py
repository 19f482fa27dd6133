"""Names and shapes of families with other layer names, optional groups and scales are judged right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from check_healthy import FAMILIES, make_family

from mappings.families import load_family
from mappings.formats.safetensors import TensorEntry
from migrate.check.command import check
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.check.tensors import (
    layers_are_all_there,
    nothing_is_missing,
    nothing_is_unexpected,
    shapes_fit,
)
from migrate.report import Severity, Verdict

DEEPSEEK: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
    "n_routed_experts": 3, "moe_intermediate_size": 7, "first_k_dense_replace": 1, "q_lora_rank": 5, "kv_lora_rank": 8,
    "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 6, "num_nextn_predict_layers": 1,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v3": DEEPSEEK,
    "gpt2": {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 4, "n_positions": 17},
}


def findings(family: str, drop: tuple[str, ...] = (), add: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    kind, config = load_family(family), CONFIGS[family]
    shapes = {p.name: p.shape for p in kind.parameters(config) if not p.name.startswith(drop or ("-",))}
    shapes |= dict.fromkeys(add, (1, 1))
    path = Path("model.safetensors")
    entries = {name: TensorEntry(path, name, "F32", shape, 0, 0) for name, shape in shapes.items()}
    subject = Subject(Path(), config, family=kind, tensors=entries)
    topics = (layers_are_all_there, nothing_is_missing, nothing_is_unexpected, shapes_fit)
    return [(found.code, found.message) for topic in topics for found in topic(subject, Tally())]


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_all_that_the_model_has_is_fine(family: str) -> None:
    assert findings(family) == []


def test_further_token_layers_may_be_left_out_but_not_in_part() -> None:
    assert findings("deepseek_v3", drop=("model.layers.3.",)) == []
    assert [code for code, _ in findings("deepseek_v3", drop=("model.layers.3.enorm",))] == ["C420"]
    assert [code for code, _ in findings("deepseek_v3", drop=("model.layers.2.",))] == ["C430"]


def test_layers_of_gpt2_are_counted() -> None:
    (code, message), *_ = findings("gpt2", drop=("transformer.h.1.",))
    assert code == "C430" and message == "num_hidden_layers is 2, the weights hold layers 0"


def test_scales_of_eight_bit_weights_are_no_strangers() -> None:
    scale = "model.layers.0.mlp.up_proj.weight_scale_inv"
    assert findings("deepseek_v3", add=(scale,)) == []
    assert [code for code, _ in findings("gpt2", add=(scale,))] != []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_healthy_directory_of_any_family_is_clean(name: str, tmp_path: Path) -> None:
    report = check(make_family(name, tmp_path))
    assert [(f.code, f.message) for f in report.findings if f.severity is not Severity.NOTE] == []
    passed = {stage.name for stage in report.stages if stage.verdict is Verdict.PASS}
    assert passed >= {"vocabulary", "special ids", "arithmetic", "tensors", "round trip"}
