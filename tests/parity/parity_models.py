"""Small random models with odd sizes, saved as Hugging Face directories."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config}
# No size equals another one or the 41 positions of the batch, and three query heads share a key head.
SIZES = {
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


def make(family: str, directory: Path, *, scale: float = 0.1, **overrides: object) -> Path:
    """Saves a model none of whose parameters is at its initial constant; attention is far from uniform."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**{**SIZES, **overrides}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    model.save_pretrained(directory)
    return directory
