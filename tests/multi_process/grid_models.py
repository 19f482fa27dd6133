"""Tiny models of every family for the grid of layouts: random weights, odd sizes, no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mappings.families import family_for_config

SIZES: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 64,
    "num_hidden_layers": 3,  # odd: stages are uneven
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 6,
    "vocab_size": 53,  # odd: padding rows on the last rank
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-deep": {"model_type": "llama", "num_hidden_layers": 5},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True, "pad_token_id": 3},
    "one-kv-head": {"model_type": "llama", "num_key_value_heads": 1},
    "qwen3": {"model_type": "qwen3"},
    "mistral": {"model_type": "mistral", "sliding_window": 4},
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 4,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 9.0,
    },
    # Longer than the original context by one chunk of a rank of cp=2; a rank that counted its own positions would err.
    "phi3": {
        "model_type": "phi3",
        "sliding_window": 6,
        "pad_token_id": 3,
        "original_max_position_embeddings": 12,
        "partial_rotary_factor": 0.67,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]},
    },
    "glm4": {"model_type": "glm4", "pad_token_id": 3},
    "gemma3_text": {
        "model_type": "gemma3_text",
        "sliding_window": 4,
        "sliding_window_pattern": 2,
        "rope_theta": 1e3,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gpt2": {
        "model_type": "gpt2",
        "head_dim": 5,
        "n_positions": 64,
        "scale_attn_by_inverse_layer_idx": True,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "gpt_neox": {"model_type": "gpt_neox", "head_dim": 10, "num_attention_heads": 4, "hidden_act": "gelu"},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "head_dim": None,
        "num_key_value_heads": 8,
        "q_lora_rank": 20,
        "kv_lora_rank": 14,
        "qk_nope_head_dim": 5,
        "qk_rope_head_dim": 6,
        "v_head_dim": 7,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        **EXPERTS,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", "num_experts": 4, "norm_topk_prob": True, **EXPERTS},
}


def config_of(name: str) -> dict[str, Any]:
    """`config.json` of a model; what is None in it is left out."""
    return {field: value for field, value in {**SIZES, **MODELS[name]}.items() if value is not None}


def has_experts(name: str) -> bool:
    """Whether a model has experts."""
    config = config_of(name)
    return "experts" in family_for_config(config).dims(config)


def write_model(directory: Path, config: dict[str, Any]) -> None:
    """A Hugging Face directory with random weights, none of them at an initial value."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {}
    for parameter in family_for_config(config).parameters(config):
        values = rng.standard_normal(parameter.shape) * 0.15 + (1 if "norm" in parameter.name else 0)
        weights[parameter.name] = values.astype(np.float32)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
