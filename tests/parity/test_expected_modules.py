"""What a comparison expects follows from the facts of a family: names, and reasons for what is left out."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.families import load_family
from migrate.parity.layouts.whole_outputs import whole_outputs
from migrate.parity.modules import SECOND_BIAS, UNUSED_GROUPS, expect

SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
GPT2 = {"vocab_size": 11, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
SPARSE = {"num_experts": 3, "moe_intermediate_size": 6, "mlp_only_layers": [1], "head_dim": 4}
LATENT = {"q_lora_rank": 4, "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 5}
DEEPSEEK = {**SIZES, **LATENT, "n_routed_experts": 4, "moe_intermediate_size": 6, "first_k_dense_replace": 1}


def layer(index: int, *names: str) -> set[str]:
    return {f"model.layers.{index}.{name}" for name in names}


def test_experts_are_one_module_and_a_router_another() -> None:
    modules = set(expect(load_family("qwen3_moe"), {**SIZES, **SPARSE}).modules)
    assert layer(0, "mlp", "mlp.gate", "mlp.experts", "self_attn.q_norm") <= modules
    assert layer(1, "mlp.gate_proj", "mlp.down_proj") <= modules
    assert not [name for name in modules if "experts." in name]
    assert "model.layers.0.mlp.gate_proj" not in modules
    weights = expect(load_family("qwen3_moe"), {**SIZES, **SPARSE}).weights
    assert "model.layers.0.mlp.experts.gate_up_proj" in weights


def test_mixtral_has_the_names_of_transformers_in_memory() -> None:
    expected = expect(load_family("mixtral"), {**SIZES, "num_local_experts": 2})
    assert layer(0, "mlp", "mlp.gate", "mlp.experts") <= set(expected.modules)
    assert not [name for name in (*expected.modules, *expected.weights) if "block_sparse_moe" in name]


@pytest.mark.parametrize(
    ("family", "config", "there", "not_there"),
    [
        ("gpt2", GPT2, {"transformer.wte", "transformer.wpe", "transformer.h.1.attn.c_attn"}, {"transformer.h"}),
        ("gpt_neox", SIZES, {"gpt_neox.embed_in", "gpt_neox.final_layer_norm"}, {"embed_out", "gpt_neox.layers"}),
        (
            "bert",
            SIZES,
            {"bert.embeddings", "bert.encoder.layer.0.attention.self", "cls.predictions.transform.dense"},
            {"bert.encoder", "bert.encoder.layer", "cls.predictions", "bert.pooler", "cls.predictions.decoder"},
        ),
        ("roberta", SIZES, {"lm_head.dense", "lm_head.layer_norm"}, {"lm_head", "lm_head.decoder", "roberta"}),
    ],
)
def test_lists_bodies_and_what_returns_logits_are_left_out(
    family: str, config: dict[str, Any], there: set[str], not_there: set[str]
) -> None:
    modules = set(expect(load_family(family), config).modules)
    assert there <= modules
    assert not not_there & modules


def test_layers_for_further_tokens_are_compared_bit_for_bit_only() -> None:
    family = load_family("deepseek_v3")
    config = {**DEEPSEEK, "num_nextn_predict_layers": 1}
    without, with_them = expect(family, config), expect(family, config, ["mtp"])
    assert with_them.modules == without.modules and with_them.trained == without.trained
    assert set(with_them.weights) - set(without.weights) == set(with_them.idle) != set()
    assert all(name.startswith("model.layers.2.") for name in with_them.idle)
    assert with_them.left_out[with_them.idle[0]] == UNUSED_GROUPS["mtp"]


def test_the_correction_of_a_router_has_no_gradient() -> None:
    expected = expect(load_family("deepseek_v3"), {**DEEPSEEK, "num_nextn_predict_layers": 0})
    (name,) = set(expected.weights) - set(expected.trained)
    assert name == "model.layers.1.mlp.gate.e_score_correction_bias"
    assert "load" in expected.left_out[name]


def test_an_untied_encoder_does_not_use_its_second_bias_and_never_its_pooler() -> None:
    family = load_family("bert")
    tied = expect(family, SIZES, ["pooler"])
    assert "cls.predictions.bias" in tied.trained
    assert set(tied.weights) - set(tied.trained) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    untied = expect(family, {**SIZES, "tie_word_embeddings": False})
    assert untied.left_out["cls.predictions.bias"] == SECOND_BIAS
    assert {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"} <= set(untied.trained)


@pytest.mark.parametrize(
    ("family", "config", "whole", "cut"),
    [
        (
            "llama",
            SIZES,
            {"self_attn.o_proj", "self_attn", "mlp.down_proj", "mlp"},
            {"self_attn.q_proj", "mlp.up_proj"},
        ),
        ("qwen3_moe", {**SIZES, **SPARSE}, {"mlp.gate", "mlp.experts", "input_layernorm"}, {"self_attn.q_norm"}),
        ("mixtral", SIZES, {"mlp.gate", "mlp.experts"}, {"self_attn.v_proj"}),
        ("gpt2", GPT2, {"attn.c_proj", "attn", "mlp.c_proj", "ln_1"}, {"attn.c_attn", "mlp.c_fc"}),
        ("bert", SIZES, {"attention", "attention.output", "output.dense"}, {"attention.self", "intermediate"}),
        ("deepseek_v3", DEEPSEEK, {"self_attn.q_a_proj", "self_attn.o_proj"}, {"self_attn.q_b_proj"}),
    ],
)
def test_modules_with_whole_outputs_under_tensor_parallelism(
    family: str, config: dict[str, Any], whole: set[str], cut: set[str]
) -> None:
    facts = load_family(family)
    modules = expect(facts, config).modules
    found = {name.partition(".0.")[2] for name in whole_outputs(facts, config, modules) if ".0." in name}
    assert whole <= found
    assert not cut & found
