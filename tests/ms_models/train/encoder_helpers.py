"""Tiny encoders with a tokenizer of WordPiece, and data of `[CLS] words [SEP]` rows, for tests of the runner."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from mappings.families import family_for_config
from mappings.formats.manifest import hash_file
from ms_models.data.packing import IGNORED
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.data.shards import ShardWriter

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, CLS, SEP = 0, 2, 3
VOCABULARY = 51  # odd: the last of two tensor-parallel ranks has a row of padding
LENGTH = 14
NAMES = ("input_ids", "attention_mask", "labels")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 38, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 20, "layer_norm_eps": 1e-5, "pad_token_id": PAD,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "model_type": "bert", "architectures": ["BertForMaskedLM"], "type_vocab_size": 2},
    "roberta": {**SIZES, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "type_vocab_size": 1},
}


def write_encoder(directory: Path, kind: str = "bert", **fields: Any) -> Path:
    """A Hugging Face directory with random weights and a tokenizer."""
    directory.mkdir(parents=True)
    config = {**CONFIGS[kind], **fields}
    (directory / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {}
    for parameter in family_for_config(config).parameters(config):
        if "pooler" in parameter.name or "seq_relationship" in parameter.name:
            continue  # as transformers saves the class with the head of masked words only
        is_norm_weight = parameter.layer_class == "norm" and parameter.name.endswith("weight")
        weights[parameter.name] = (rng.standard_normal(parameter.shape) * 0.1 + is_norm_weight).astype(np.float32)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """The tokenizer of every encoder here: special tokens, then the words w0, w1 ..."""
    tokens = [*SPECIAL, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))]
    made = Tokenizer(WordPiece({token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.add_special_tokens(list(SPECIAL))
    made.save(str(directory / "tokenizer.json"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


def write_rows(directory: Path, train: int = 29, validation: int = 5) -> Path:
    """Prepared data: rows of very unequal lengths, the rest of each is padding."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(1)
    splits = {}
    for name, count in {TRAIN: train, VALIDATION: validation}.items():
        with ShardWriter(directory, name, LENGTH, 1 << 20) as writer:
            lengths = rng.integers(3, LENGTH - 1, count)
            writer.extend([make_row(rng.integers(len(SPECIAL), VOCABULARY, length)) for length in lengths])
        splits[name] = writer.split()
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        digest = hash_file(Path(folder) / "tokenizer.json").sha256
    tokenizer = {"sha256": digest, "largest_id": VOCABULARY - 1, "vocabulary": VOCABULARY}
    PreparedData(LENGTH, splits, tokenizer, documents={}, request={}, packing="pad").write(directory)
    return directory


def make_row(words: np.ndarray) -> dict[str, np.ndarray]:
    """`[CLS] words [SEP]`, padded."""
    tokens = np.array([CLS, *words, SEP])
    ids, mask, labels = np.full(LENGTH, PAD), np.zeros(LENGTH), np.full(LENGTH, IGNORED)
    ids[: len(tokens)], mask[: len(tokens)], labels[: len(tokens)] = tokens, 1, tokens
    return {name: value.astype(np.int32) for name, value in zip(NAMES, (ids, mask, labels), strict=True)}


def write_run(path: Path, model: Path, data: Path, output: Path, /, **sections: dict[str, Any]) -> Path:
    """A configuration of six steps with a global batch of 8 rows, not compiled, half of the tokens hidden."""
    from tests.ms_models.train.run_helpers import write_config

    train = {"jit": False, **sections.pop("train", {})}
    return write_config(path, model, data, output, train=train, masking={"rate": 0.5}, **sections)
