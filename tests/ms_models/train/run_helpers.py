"""Tiny models, data with unequal masks, and configurations for the tests of the runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from mappings.families import family_for_config
from mappings.formats.safetensors import read_bytes, read_header
from ms_models.data.packing import IGNORED
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.data.shards import ShardWriter

SEQ_LENGTH = 12
WORDS = 40
EOS, PAD = WORDS, WORDS + 1
# Odd sizes; the odd vocabulary gives the last of two tensor-parallel ranks a row of padding.
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 53, "hidden_size": 24,
    "intermediate_size": 38, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
    "hidden_act": "silu", "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "attention_bias": True, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def write_model(directory: Path, **changes: Any) -> Path:
    """A Hugging Face directory with random weights, without a tokenizer; `changes` are of its configuration."""
    directory.mkdir(parents=True)
    config = {**LLAMA, **changes}
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {
        p.name: (rng.standard_normal(p.shape) * 0.1 + ("norm" in p.name)).astype(np.float32)
        for p in family_for_config(config).parameters(config)
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def write_tokenizer(directory: Path) -> None:
    """A tokenizer file: the words w0..w39 are the ids 0..39."""
    vocabulary = {**{f"w{i}": i for i in range(WORDS)}, "<eos>": EOS, "<pad>": PAD}
    made = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    made.pre_tokenizer = WhitespaceSplit()
    made.enable_truncation(3)  # a tokenizer file may carry these; packing must not obey them
    made.enable_padding(length=50, pad_id=PAD, pad_token="<pad>")
    made.save(str(directory / "tokenizer.json"))
    special = {"eos_token": {"content": "<eos>"}, "pad_token": "<pad>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))


def make_rows(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Rows whose padding and ignored labels differ widely; the first token says which row it is."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        tokens = rng.integers(2, LLAMA["vocab_size"], SEQ_LENGTH).astype(np.int32)
        tokens[0] = number % LLAMA["vocab_size"]
        length = int(rng.integers(2, SEQ_LENGTH + 1))
        mask = (np.arange(SEQ_LENGTH) < length).astype(np.int32)
        labels = np.where(mask == 1, tokens, IGNORED).astype(np.int32)
        labels[1 : int(rng.integers(0, length - 1)) + 1] = IGNORED  # a prompt that is not trained on
        rows.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return rows


def write_data(directory: Path, train: int = 37, validation: int = 5, rows_per_shard: int = 15, seed: int = 0) -> Path:
    """Prepared data made of `make_rows`, in several shards."""
    directory.mkdir(parents=True)
    splits = {}
    for number, (name, count) in enumerate({TRAIN: train, VALIDATION: validation}.items()):
        with ShardWriter(directory, name, SEQ_LENGTH, rows_per_shard * SEQ_LENGTH * 12) as writer:
            writer.extend(make_rows(count, seed + number))
        splits[name] = writer.split()
    tokenizer = {"sha256": "none", "largest_id": LLAMA["vocab_size"] - 1, "vocabulary": LLAMA["vocab_size"]}
    PreparedData(SEQ_LENGTH, splits, tokenizer, documents={}, request={}).write(directory)
    return directory


def write_config(path: Path, model: Path, data: Path, output: Path, /, **sections: dict[str, Any]) -> Path:
    """A run of six steps with a global batch of 8; `sections` add to it or replace fields."""
    values: dict[str, Any] = {
        "model": {"path": str(model)},
        "data": {"path": str(data)},
        "train": {"steps": 6, "micro_batch_size": 2, "accumulation": 4, "eval_every": 3, "seed": 5},
        "optimizer": {"lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.5},
        "schedule": {"warmup_steps": 2},
        "checkpoint": {"every": 3},
        "output": {"directory": str(output)},
    }
    for name, fields in sections.items():
        values[name] = {**values.get(name, {}), **fields}
    path.write_text(yaml.safe_dump(values))
    return path


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every fp32 tensor of a safetensors file."""
    return {e.name: np.frombuffer(read_bytes(e), "<f4").reshape(e.shape) for e in read_header(path)[0]}
