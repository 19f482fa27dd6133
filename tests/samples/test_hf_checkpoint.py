"""The maker of Hugging Face checkpoints writes what transformers and a careful reader expect of a real one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from mappings.errors import UserError
from samples.hf_checkpoint.make import FAMILIES, main, make

SCRIPT = Path(__file__).parents[2] / "samples" / "hf_checkpoint" / "make.py"
TEXTS = [
    "def main(argv=None):\n    return 0\n",
    "tabs\tand  two blanks\r\n\r\n   indented 12345",
    "Gr\u00fc\u00dfe, \u4f60\u597d, \U0001f600",  # composed: Qwen2 normalises to NFC, which is not reversible
    " leading and trailing ",
]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The default checkpoint of each family."""
    return request.param, make(request.param, tmp_path_factory.mktemp(request.param))


def read(directory: Path, name: str) -> dict[str, Any]:
    return json.loads((directory / name).read_text(encoding="utf-8"))


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        found |= load_file(path)
    return found


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_transformers_loads_it_and_generates(checkpoint: tuple[str, Path]) -> None:
    _, directory = checkpoint
    model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))

    tokenizer = AutoTokenizer.from_pretrained(directory)
    batch = tokenizer(["import os", "def main(argv):"], return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(**batch, max_new_tokens=5, min_new_tokens=5)
    assert output.shape == (2, batch["input_ids"].shape[1] + 5)
    assert output.max() < len(tokenizer)


def test_the_weights_are_sharded_and_the_index_is_complete(checkpoint: tuple[str, Path]) -> None:
    family, directory = checkpoint
    index = read(directory, "model.safetensors.index.json")
    shards = {path.name: set(load_file(path)) for path in directory.glob("*.safetensors")}
    assert len(shards) >= 3
    assert index["weight_map"] == {name: shard for shard, names in shards.items() for name in names}
    assert ("lm_head.weight" in index["weight_map"]) == (family == "llama")  # qwen2 is tied


def test_no_parameter_is_at_its_initial_constant(checkpoint: tuple[str, Path]) -> None:
    family, directory = checkpoint
    found = tensors(directory)
    for name, tensor in found.items():
        assert tensor.std() > 0.01, f"{name} is constant"
        assert tensor.unique().numel() > 0.9 * tensor.numel() or tensor.numel() > 10_000, f"{name} repeats values"
    assert any(name.endswith(".bias") for name in found) == (family == "qwen2")
    pairs = [t for name, t in found.items() if name.endswith("norm.weight")]
    assert len(pairs) == 9
    assert not any(torch.equal(a, b) for i, a in enumerate(pairs) for b in pairs[:i])


def test_ids_agree_in_every_file(checkpoint: tuple[str, Path]) -> None:
    family, directory = checkpoint
    config, generation = read(directory, "config.json"), read(directory, "generation_config.json")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    spec = FAMILIES[family]
    assert len(tokenizer) == config["vocab_size"] == 2048
    assert tensors(directory)["model.embed_tokens.weight"].shape == (2048, 128)
    for kind, token in (("bos", spec.bos), ("eos", spec.eos), ("pad", spec.pad)):
        expected = None if token is None else tokenizer.convert_tokens_to_ids(token)
        assert config[f"{kind}_token_id"] == expected
        assert generation.get(f"{kind}_token_id") == expected
        assert getattr(tokenizer, f"{kind}_token_id") == expected
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.model_max_length == config["max_position_embeddings"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_tokenizer(checkpoint: tuple[str, Path], text: str) -> None:
    family, directory = checkpoint
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (ids[0] == tokenizer.bos_token_id) == (family == "llama")
    assert tokenizer.eos_token_id not in ids
    assert Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids == ids


def test_the_tokenizer_has_learnt_merges(checkpoint: tuple[str, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint[1])
    text = "    def __init__(self, name=None):\n        self.name = name\n"
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) < len(text) / 2


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), "qwen2", str(tmp_path / "a"), "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'a'}: qwen2, 5 weight files, ")

    same = digests(make("qwen2", tmp_path / "b", seed=5))
    assert digests(tmp_path / "a") == same
    other = digests(make("qwen2", tmp_path / "c", seed=6))
    changed = {name for name in same if same[name] != other[name]}
    assert changed == {name for name in same if name.endswith(".safetensors")}  # the tokenizer has no seed


def test_odd_sizes_dtype_and_overrides(tmp_path: Path) -> None:
    odd = make(
        "qwen2",
        tmp_path / "odd",
        vocab_size=301,
        corpus_bytes=200_000,
        max_shard_size="100KB",
        dtype="bfloat16",
        hidden_size=42,
        intermediate_size=77,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=10,
        num_hidden_layers=3,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    )
    config, found = read(odd, "config.json"), tensors(odd)
    assert config["rope_parameters"]["factor"] == 2.0
    assert found["lm_head.weight"].shape == (301, 42)
    assert found["model.layers.2.self_attn.k_proj.weight"].shape == (30, 42)
    assert found["model.layers.0.mlp.down_proj.weight"].shape == (42, 77)
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(odd)(torch.arange(8)[None]).logits
    assert logits.shape == (1, 8, 301) and logits.isfinite().all()

    tied = make("llama", tmp_path / "tied", vocab_size=301, corpus_bytes=200_000, tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors(tied)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt9", "OUT"], "family 'gpt9' is unknown"),
        (["qwen2", "USED"], "is not an empty directory"),
        (["qwen2", "OUT", "--vocab-size", "10"], "vocab_size 10 is too small"),
        (["qwen2", "OUT", "--corpus-bytes", "10"], "corpus_bytes 10 holds no file"),
        (["qwen2", "OUT", "--corpus-bytes", "30000"], "raise corpus_bytes or lower vocab_size"),
        (["qwen2", "OUT", "--dtype", "f8"], "dtype 'f8' is unknown"),
        (["qwen2", "OUT", "--max-shard-size", "lots"], "max_shard_size 'lots' is not a size"),
        (["qwen2", "OUT", "--set", "num_layers=3"], "did you mean 'num_hidden_layers'"),
        (["qwen2", "OUT", "--set", "vocab_size=300"], "use --vocab-size instead"),
        (["qwen2", "OUT", "--set", "num_hidden_layers=two"], "num_hidden_layers 'two' is not a positive whole number"),
        (["qwen2", "OUT", "--set", "num_attention_heads=3"], "hidden_size 128 is not a multiple"),
        (["llama", "OUT", "--set", "num_key_value_heads=3"], "num_attention_heads 8 is not a multiple"),
        (["llama", "OUT", "--set", "rms_norm_eps=small"], "transformers refuses this llama configuration"),
        (["llama", "OUT", "--set", "hidden_act=nosuch"], "transformers refuses this llama configuration"),
        (["llama", "OUT", "--set", "mlp_bias"], "not of the form name=value"),
        (["llama", "OUT", "--set", "mlp_bias=[1"], "not a value that YAML can read"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "USED").mkdir()
    (tmp_path / "USED" / "file").touch()
    family, directory, *options = arguments
    # a short corpus: most of these are refused after the tokenizer is trained
    quick = [] if "--corpus-bytes" in options else ["--corpus-bytes", "200000"]
    vocabulary = [] if {"--vocab-size", "--corpus-bytes"} & set(options) else ["--vocab-size", "300"]
    assert main([family, str(tmp_path / directory), *options, *quick, *vocabulary]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert not (tmp_path / "OUT").exists()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made"):
        make("llama", tmp_path / "file" / "out", vocab_size=300, corpus_bytes=200_000)
