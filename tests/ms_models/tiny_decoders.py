"""Tiny random Phi-3, GLM-4 and Gemma 3 models; see `tiny_models`."""

from __future__ import annotations

import transformers
from tiny_models import SIZES

LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,  # 6 of 8 dimensions, as a part of Phi-4-mini's heads
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.5, 4.0, 12.0],
}
ORIGINAL = 12

CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "phi3": transformers.Phi3Config(**SIZES, pad_token_id=5, sliding_window=6, eos_token_id=7),
    # The batch is longer than the original context.
    "phi3-longrope-tied": transformers.Phi3Config(
        **SIZES,
        tie_word_embeddings=True,
        pad_token_id=5,
        eos_token_id=7,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=LONG_ROPE,
    ),
    "glm4": transformers.Glm4Config(**SIZES, head_dim=20, pad_token_id=5),
    "glm4-tied-whole": transformers.Glm4Config(
        **SIZES,
        head_dim=10,
        tie_word_embeddings=True,
        attention_bias=False,
        pad_token_id=None,
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    ),
    # full attention in layer 1 only
    "gemma3_text": transformers.Gemma3TextConfig(
        **SIZES,
        head_dim=10,
        sliding_window=4,
        query_pre_attn_scalar=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e3},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
        final_logit_softcapping=3.0,
    ),
}
