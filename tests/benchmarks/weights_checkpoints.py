"""Checkpoints for the benchmark of the weight converter: real names and shapes, from the family files, random bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.families import load_family
from mappings.formats.hf_directory import INDEX
from mappings.formats.safetensors import build_header

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "tie_word_embeddings": True, "attention_bias": False, "dtype": "bfloat16",
}  # fmt: skip
"""Qwen3-0.6B: 310 tensors, 1.19 GB in BF16."""
MANY_EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 32000, "hidden_size": 256,
    "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 54, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "tie_word_embeddings": False, "attention_bias": False, "dtype": "bfloat16",
}  # fmt: skip
"""Qwen3-MoE of 54 layers with 128 small experts: over 20,000 tensors of 64 KiB."""
DEEPSEEK_671B = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": 8, "topk_group": 4, "tie_word_embeddings": False,
    "attention_bias": False, "num_nextn_predict_layers": 0, "dtype": "bfloat16",
}  # fmt: skip
"""DeepSeek-V3 without its prediction layer, in BF16: 45,000 tensors, 1.34 TB, as sparse files."""
SHARD = 2 << 30
BLOCK = 32 << 20


def make(directory: Path, config: Mapping[str, Any], *, sparse: bool = False, shard: int = SHARD) -> Path:
    """Writes a Hugging Face directory of a configuration.

    Args:
        directory: to make.
        config: `config.json`.
        sparse: leave the data out: files have their size, and take no space.
        shard: bytes per file, about.
    """
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(dict(config), indent=1))
    shards = list(_shards(config, shard))
    noise = np.random.default_rng(0).standard_normal(BLOCK // 2, np.float32).view(np.uint32) >> 16
    block = noise.astype("<u2").tobytes()
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header, spans = build_header([(tensor, "BF16", shape) for tensor, shape in tensors], {"format": "pt"})
        size = len(header) + sum(nbytes for _, nbytes in spans.values())
        with (directory / name).open("wb") as file:
            file.write(header)
            while not sparse and file.tell() < size:
                file.write(block[: size - file.tell()])
            file.truncate(size)
        weight_map |= dict.fromkeys(spans, name)
    total = sum(2 * math.prod(shape) for tensors in shards for _, shape in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True))
    return directory


def _shards(config: Mapping[str, Any], limit: int) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    parameters = iter(load_family(str(config["model_type"])).parameters(config))
    group: list[tuple[str, tuple[int, ...]]] = []
    size = 0
    for parameter in parameters:
        group.append((parameter.name, parameter.shape))
        size += 2 * math.prod(parameter.shape)
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group


__all__ = ["DEEPSEEK_671B", "MANY_EXPERTS", "QWEN3_06B", "make"]
