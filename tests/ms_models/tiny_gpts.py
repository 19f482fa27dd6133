"""Tiny random GPT-2 and GPT-NeoX models; see `tiny_models`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from tiny_models import Case, answers_of, build

GPT2: dict[str, Any] = {
    "vocab_size": 101,
    "n_positions": 31,
    "n_embd": 42,
    "n_layer": 2,
    "n_head": 6,
    "layer_norm_epsilon": 1e-3,  # large enough to be seen when it is forgotten
    "bos_token_id": None,
    "eos_token_id": 7,
}
NEOX: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-3,
    "bos_token_id": None,
    "eos_token_id": 7,
}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "gpt2": transformers.GPT2Config(**GPT2, pad_token_id=5),
    "gpt2-other": transformers.GPT2Config(
        **GPT2,
        n_inner=76,
        activation_function="relu",
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
        tie_word_embeddings=False,
    ),
    # 3 of 12 dimensions of a head are rotated as they come, which is no whole number of pairs: 4
    "gpt_neox": transformers.GPTNeoXConfig(**NEOX, pad_token_id=5),
    "gpt_neox-serial-tied": transformers.GPTNeoXConfig(
        **NEOX,
        use_parallel_residual=False,
        tie_word_embeddings=True,
        hidden_act="gelu_new",
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    ),
}


def make_gpt_case(name: str, directory: Path) -> Case:
    """See `tiny_models.make_case`. The head of GPT-NeoX is called as it is stored: transformers 5 renames it."""
    case = answers_of(build(CONFIGS[name], directory), directory)
    if not name.startswith("gpt_neox"):
        return case
    stored = {key.replace("lm_head.", "embed_out."): value for key, value in case.gradients.items()}
    return replace(case, gradients=stored)
