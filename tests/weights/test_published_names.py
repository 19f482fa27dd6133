"""Checkpoints named as they were published: without a prefix, under older names, with buffers and second copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from container_runs import errors, to_hf, to_sharded
from safetensors.numpy import load_file, save_file

from mappings.arrangement import Arrangement
from mappings.families import load_family
from mappings.layout import ParallelLayout
from migrate.weights.containers import hf, sharded

SMALL = yaml.safe_load((Path(__file__).parents[1] / "mappings_core/family_configs.yaml").read_text("utf-8"))

Form = tuple[dict[str, Any], dict[str, np.ndarray], set[str]]
"""config.json, tensors, and the names of those that are no parameters."""


def model(family: str, architecture: str, optional: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """config.json and random tensors under the names of a family's atoms."""
    kind = load_family(family)
    config = {"model_type": kind.model_types[0], "architectures": [architecture], **SMALL[family]["config"]}
    rng, dims = np.random.default_rng(0), kind.dims(config)
    shapes = {name: atom.shape for name, atom in kind.atoms(config).items()}
    tensors = {}
    for spelled in kind.spelling(config, "hf_prefixed"):
        if optional or not spelled.optional:
            whole = spelled.arrangement(lambda name: Arrangement.of(name, shapes[name]), dims)
            assert whole is not None
            tensors[spelled.name] = rng.normal(size=whole.shape).astype(np.float32)
    return config, tensors


def gpt2() -> Form:
    config, tensors = model("gpt2", "GPT2LMHeadModel")
    tensors = {name.removeprefix("transformer."): values for name, values in tensors.items()}
    masks = {f"h.{layer}.attn.bias": np.ones((1, 1, 17, 17), np.float32) for layer in (0, 1)}
    return config, tensors | masks, set(masks)


def bert() -> Form:
    config, tensors = model("bert", "BertForMaskedLM", optional=True)
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        tensors = {name.replace(new, old): values for name, values in tensors.items()}
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    return config, tensors | {"bert.embeddings.position_ids": np.arange(17)[None]}, {"bert.embeddings.position_ids"}


def bert_encoder() -> Form:
    config, tensors = model("bert", "BertModel", optional=True)
    tensors = {name.removeprefix("bert."): values for name, values in tensors.items()}
    return config, tensors | {"embeddings.position_ids": np.arange(17)[None]}, {"embeddings.position_ids"}


def prefixed_encoder() -> Form:
    return *model("roberta", "RobertaModel"), set()


def xlm_roberta() -> Form:
    config, tensors = model("xlm_roberta", "XLMRobertaForMaskedLM", optional=True)
    tensors["lm_head.decoder.weight"] = tensors["roberta.embeddings.word_embeddings.weight"]
    tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"]
    return (
        config,
        tensors | {"roberta.embeddings.position_ids": np.arange(17)[None]},
        {"roberta.embeddings.position_ids"},
    )


def bloom() -> Form:
    config, tensors = model("bloom", "BloomForCausalLM")
    return config, {name.removeprefix("transformer."): values for name, values in tensors.items()}, set()


def falcon() -> Form:
    config, tensors = model("falcon", "FalconForCausalLM")
    return config, tensors | {"lm_head.weight": tensors["transformer.word_embeddings.weight"]}, set()


def gpt_neox() -> Form:
    config, tensors = model("gpt_neox", "GPTNeoXForCausalLM")
    layer = "gpt_neox.layers.1.attention."
    buffers = {
        layer + "bias": np.ones((1, 1, 9, 9), np.bool_),
        layer + "masked_bias": np.array(-1e9, np.float32),
        layer + "rotary_emb.inv_freq": np.ones(1, np.float32),
    }
    return config, tensors | buffers, set(buffers)


FORMS = [gpt2, bert, bert_encoder, prefixed_encoder, xlm_roberta, bloom, falcon, gpt_neox]


@pytest.mark.parametrize("form", FORMS)
def test_they_are_read_cut_and_joined_again(form: Any, tmp_path: Path) -> None:
    config, tensors, buffers = form()
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    read = hf.read(source)
    assert errors(read) == []
    assert {entry.name for entry in read.left_out} >= buffers
    to_sharded(read, tmp_path / "cut", ParallelLayout(tp=2, pp=2))
    cut = sharded.read(tmp_path / "cut")
    assert errors(cut) == []
    to_hf(cut, back)
    (back / "config.json").write_text(json.dumps(config))
    again = hf.read(back)
    assert errors(again) == []
    assert again.atoms == read.atoms
    values = sorted(values.tobytes() for name, values in tensors.items() if name not in buffers)
    found = sorted(values.tobytes() for values in load_file(back / "model.safetensors").values())
    copies = {name for name in tensors if load_family(read.family.name).tied_to(name, config)}  # type: ignore[union-attr]
    assert len(found) == len(values) - len(copies) and set(found) == set(values)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_there_is_named(form: Any, tmp_path: Path) -> None:
    config, tensors, _ = form()
    (tmp_path / "config.json").write_text(json.dumps(config))
    lost = next(name for name in tensors if "LayerNorm" in name or "norm" in name or "ln_" in name)
    kept = {name: values for name, values in tensors.items() if name != lost}
    save_file({**kept, "x.bias": np.ones(1)}, tmp_path / "model.safetensors")
    found = {(code, tensor) for code, tensor, _ in errors(hf.read(tmp_path))}
    assert {tensor for _, tensor in found} == {lost, "x.bias"}


def test_two_spellings_in_one_checkpoint_are_refused(tmp_path: Path) -> None:
    config, tensors, _ = bert()
    renamed = {name: name.replace("gamma", "weight") for name in tensors}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({renamed[name]: values for name, values in tensors.items()}, tmp_path / "model.safetensors")
    found = {tensor for _, tensor, _ in errors(hf.read(tmp_path))}
    other = {name for name in tensors if "gamma" in name or "beta" in name}
    assert found and found <= other | {renamed[name].replace("beta", "bias") for name in other}
