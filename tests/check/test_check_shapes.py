"""Healthy directories as people have them: resized, merged, old, tied twice. None has an error."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from check_breaks import between, edit, inserting, rewrite
from check_healthy import make, make_family
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from migrate.check.command import check
from migrate.report import Severity

Change = Callable[[Path], None]


def resized(multiple: int | None) -> Change:
    """Tokens added, the model resized, both saved again."""

    def change(directory: Path) -> None:
        words, model = AutoTokenizer.from_pretrained(directory), AutoModelForCausalLM.from_pretrained(directory)
        words.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        words.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.resize_token_embeddings(len(words), pad_to_multiple_of=multiple)
        for path in directory.iterdir():
            path.unlink()
        words.save_pretrained(directory)
        model.save_pretrained(directory)

    return change


def merged(directory: Path) -> None:
    """A low-rank update added to the weights, saved in one file."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        name = "model.layers.0.self_attn.q_proj.weight"
        random = np.random.default_rng(0)
        rows, columns = tensors[name].shape
        update = random.normal(size=(rows, 2)) @ random.normal(size=(2, columns))
        tensors[name] = (tensors[name] + update).astype(tensors[name].dtype)

    rewrite(change)(directory)


def tied_twice(directory: Path) -> None:
    rewrite(lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}))(directory)


def old_fields(directory: Path) -> None:
    """As transformers 4 wrote it."""
    edit("config.json", rope_parameters=..., rope_theta=10000.0, rope_scaling=None, dtype=..., torch_dtype="float32")(
        directory
    )
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": "<pad>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(tokens))
    (directory / "added_tokens.json").write_text(json.dumps({"<pad>": 2}))


def old_scaling(directory: Path) -> None:
    edit("config.json", rope_parameters=..., rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 2.0})(
        directory
    )


def with_buffers(directory: Path) -> None:
    """Tables of angles that early Llama files hold."""
    rewrite(lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}))(
        directory
    )


def other_file_names(directory: Path) -> None:
    """Shards named after pytorch_model-*.bin, as converters name them."""
    index, names = {}, sorted(directory.glob("*.safetensors"))
    for number, path in enumerate(names, 1):
        new = f"pytorch_model-{number:05d}-of-{len(names):05d}.safetensors"
        index |= dict.fromkeys(load_file(path), new)
        save_file(load_file(path), directory / new)
        path.unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


SHAPES: dict[str, tuple[str, Change]] = {
    "texts begin with a token": ("llama", inserting("<s>", 0)),
    "a separator": ("llama", between("</s>", 1)),
    "llama, tokens added and resized": ("llama", resized(None)),
    "qwen2, resized to a multiple of 64": ("qwen2", resized(64)),
    "gpt2, tokens added and resized": ("gpt2", resized(None)),
    "gpt_neox, resized to a multiple of 64": ("gpt_neox", resized(64)),
    "llama, LoRA merged": ("llama", merged),
    "qwen2, tied and stored twice": ("qwen2 tied", tied_twice),
    "llama of transformers 4": ("llama", old_fields),
    "llama with linear scaling, old spelling": ("llama", old_scaling),
    "llama with tables of angles": ("llama", with_buffers),
    "llama with other file names": ("llama", other_file_names),
    "mixtral in bfloat16": ("mixtral", lambda directory: to_bfloat16(directory)),
    "gemma2 without a window": ("gemma2", edit("config.json", layer_types=["full_attention"] * 2)),
    "qwen2, window given and off": ("qwen2", edit("config.json", sliding_window=32768, use_sliding_window=False)),
    "llama with a kernel of the hub": (
        "llama",
        edit("config.json", attn_implementation="kernels-community/flash-attn"),
    ),
    "llama that stops at several tokens": ("llama", edit("generation_config.json", eos_token_id=[1, 5])),
}


def to_bfloat16(directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    for path in directory.glob("model*"):
        path.unlink()
    model.save_pretrained(directory)


@pytest.mark.parametrize("name", SHAPES)
def test_a_healthy_directory_has_no_error(name: str, tmp_path: Path) -> None:
    family, change = SHAPES[name]
    if family in ("llama", "qwen2", "qwen2 tied"):
        make(family.split()[0], tmp_path, **({"tie_word_embeddings": True} if "tied" in family else {}))
    else:
        make_family(family, tmp_path)
    change(tmp_path)
    report = check(tmp_path)
    assert [(f.code, f.message) for f in report.findings if f.severity is not Severity.NOTE] == []
    assert report.exit_code == 0 and report.stages[6].name == "tensors" and report.stages[6].compared > 0


OTHERS = {
    "adapter_model.safetensors": "only an adapter",
    "pytorch_model.bin": "only pickled weights",
    "pytorch_model.bin.index.json": "only the index of pickled weights",
    "model.gguf": "only GGUF weights",
}


@pytest.mark.parametrize("file", OTHERS)
def test_weights_of_another_kind_are_named(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    [found] = [found for found in check(tmp_path).findings if found.code == "C428"]
    assert found.message.startswith(OTHERS[file])


def test_experts_that_are_lost_alike_are_one_finding(tmp_path: Path) -> None:
    make_family("mixtral", tmp_path)
    edit("config.json", num_local_experts=8)(tmp_path)
    [first, *_] = [found.message for found in check(tmp_path).findings if found.code == "C420"]
    assert first.startswith("model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight")
    assert first.endswith("is not stored in layers 0-1, experts 4-7")


def test_a_quantised_checkpoint_is_one_finding(tmp_path: Path) -> None:
    make("llama", tmp_path)
    edit("config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})(tmp_path)
    assert [f.code for f in check(tmp_path).findings] == ["C429"]
