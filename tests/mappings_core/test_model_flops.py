"""Operations per token against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.families import family_for_config
from mappings.model_flops import flops_per_token

DENSE: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
def test_a_dense_model_has_six_per_weight_and_twelve_for_attention(tied: bool) -> None:
    config = {**DENSE, "tie_word_embeddings": tied}
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 160
    expected = 6 * (3 * layer + 1000 * 64) + 12 * 3 * 4 * 16 * 128
    assert flops_per_token(family_for_config(config), config, 128) == expected


def test_of_experts_those_count_that_a_token_is_sent_to() -> None:
    config = {
        **DENSE, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 48, "tie_word_embeddings": False, "mlp_only_layers": [0],
    }  # fmt: skip
    attention = 64 * 64 * 2 + 64 * 32 * 2
    dense, sparse = 3 * 64 * 160, 8 * 64 + 2 * 3 * 64 * 48
    expected = 6 * (3 * attention + dense + 2 * sparse + 1000 * 64) + 12 * 3 * 4 * 16 * 128
    assert flops_per_token(family_for_config(config), config, 128) == expected
