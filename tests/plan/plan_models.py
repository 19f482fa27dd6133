"""Configurations for the tests of plans: tiny ones of several families, and sizes of well-known models."""

from __future__ import annotations

from typing import Any

from mappings.families import family_for_config
from migrate.plan.shapes import ModelShapes

TINY: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "vocab_size": 53, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "attention_bias": True,
    },
    "qwen2 tied": {
        "model_type": "qwen2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "gpt2": {"model_type": "gpt2", "vocab_size": 51, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 40},
    "mixtral": {
        "model_type": "mixtral", "vocab_size": 53, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3", "vocab_size": 53, "hidden_size": 32, "intermediate_size": 40,
        "moe_intermediate_size": 16, "num_hidden_layers": 5, "num_nextn_predict_layers": 1, "num_attention_heads": 4,
        "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 20,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8, "first_k_dense_replace": 2,
    },
}  # fmt: skip


def llama(hidden: int, ffn: int, layers: int, heads: int, key_heads: int, vocab: int = 32000) -> dict[str, Any]:
    """A `config.json` of the Llama family."""
    return {
        "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": key_heads,
        "max_position_embeddings": 8192,
    }  # fmt: skip


SIZES = {  # the published sizes of TinyLlama, Llama 2, Code Llama and Llama 3
    "1.1B": llama(2048, 5632, 22, 32, 4),
    "6.7B": llama(4096, 11008, 32, 32, 32),
    "13B": llama(5120, 13824, 40, 40, 40),
    "34B": llama(8192, 22016, 48, 64, 8),
    "69B": llama(8192, 28672, 80, 64, 8),
    "406B": llama(16384, 53248, 126, 128, 8, 128256),
}


def shapes_of(config: dict[str, Any]) -> ModelShapes:
    """The shapes of a configuration."""
    return ModelShapes(family_for_config(config), config)
