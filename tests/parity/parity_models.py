"""Small random models with odd sizes, saved as Hugging Face directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

ENCODERS = ("bert", "roberta", "xlm_roberta")
# No size equals another one or the 41 positions of the batch, and three query heads share a key head.
SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WIDE_HEADS = {**SIZES, "head_dim": 10}
WINDOW = {"sliding_window": 7}  # shorter than the batch, so that it is felt
LATENT = {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "attention_bias": True,
}
GROUPS = {
    "n_routed_experts": 12,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 22,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
GPT2 = {
    "vocab_size": 131,
    "n_positions": 64,
    "n_embd": 42,
    "n_layer": 2,
    "n_head": 6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
# A dense layer behind one with experts, whose weights do not add up to 1.
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 22, "mlp_only_layers": [1]}
CAPS = {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", WIDE_HEADS),
    "qwen3_moe": ("Qwen3MoeConfig", {**WIDE_HEADS, **EXPERTS}),
    "mistral": ("MistralConfig", {**WIDE_HEADS, **WINDOW}),
    "mixtral": ("MixtralConfig", {**WIDE_HEADS, **WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "phi3": ("Phi3Config", {**SIZES, **WINDOW}),
    # a window in layer 0 only, in both Gemmas
    "gemma2": ("Gemma2Config", {**WIDE_HEADS, **WINDOW, **CAPS}),
    "gemma3_text": (
        "Gemma3TextConfig",
        {
            **WIDE_HEADS,
            **WINDOW,
            "query_pre_attn_scalar": 7,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "glm4": ("Glm4Config", {**SIZES, "head_dim": 12, "attention_bias": True}),
    "deepseek_v3": ("DeepseekV3Config", {**SIZES, **LATENT, **GROUPS}),
    "gpt2": ("GPT2Config", GPT2),
    "gpt_neox": ("GPTNeoXConfig", {**SIZES, "num_attention_heads": 4}),
    "bert": ("BertConfig", SIZES),
    "roberta": ("RobertaConfig", {**SIZES, "pad_token_id": 1, "eos_token_id": 2}),
    "xlm_roberta": ("XLMRobertaConfig", {**SIZES, "pad_token_id": 1, "eos_token_id": 2}),
}


def make(family: str, directory: Path, *, scale: float = 0.1, **overrides: object) -> Path:
    """Saves a model none of whose parameters is at its initial constant; attention is far from uniform."""
    torch.manual_seed(1)
    name, settings = CONFIGS[family]
    loader: Any = AutoModelForMaskedLM if family in ENCODERS else AutoModelForCausalLM
    model = loader.from_config(getattr(transformers, name)(**{**settings, **overrides}))
    corrections = [value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for tensor in (*model.parameters(), *corrections):
            tensor.add_(torch.randn_like(tensor) * scale)
    model.save_pretrained(directory)
    return directory
