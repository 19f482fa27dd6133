"""Tiny random decoders with experts, with odd sizes, and what transformers computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny_models
import transformers

SIZES: dict[str, Any] = {**tiny_models.SIZES, "hidden_size": 44, "num_hidden_layers": 3, "head_dim": 10}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    # windows shorter than the batch, so that they are felt; rotary base, end token as transformers has them by default
    "mixtral": transformers.MixtralConfig(
        **SIZES, num_local_experts=6, num_experts_per_tok=2, sliding_window=4, pad_token_id=5
    ),
    # a dense layer between two with experts
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=22,
        norm_topk_prob=False,
        mlp_only_layers=[1],
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    # experts in the middle layer only
    "qwen3_moe-renormalised": transformers.Qwen3MoeConfig(
        **SIZES,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=22,
        norm_topk_prob=True,
        decoder_sparse_step=2,
    ),
}


def make_case(name: str, directory: Path) -> tiny_models.Case:
    """See `tiny_models.make_case`."""
    model = tiny_models.build(CONFIGS[name], directory)
    model.set_experts_implementation("eager")  # torch's grouped product refuses widths that are no multiple of 4
    return tiny_models.answers_of(model, directory)
