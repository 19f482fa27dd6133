"""Vocabulary rows: what transformers loads of the copy, against the original, element by element."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mappings.errors import UserError
from migrate.check.vocab.command import vocab
from migrate.check.vocab.new_rows import NewRows
from migrate.cli import main
from migrate.report import Report

ROWS = 37
DECODER = {
    "vocab_size": ROWS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
BERT = {
    "vocab_size": ROWS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"vocab_size": ROWS, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, tuple[Any, Any, int]] = {
    "llama": (transformers.LlamaConfig(**DECODER), transformers.LlamaForCausalLM, 2),
    "qwen2 tied": (transformers.Qwen2Config(**DECODER, tie_word_embeddings=True), transformers.Qwen2ForCausalLM, 1),
    "gpt2": (transformers.GPT2Config(**GPT2), transformers.GPT2LMHeadModel, 1),
    "bert": (transformers.BertConfig(**BERT), transformers.BertForMaskedLM, 2),
}


def save(
    folder: Path, name: str = "llama", dtype: torch.dtype = torch.float32, shards: str = "5GB", ids: int = ROWS
) -> Path:
    config, cls, _ = MODELS[name]
    torch.manual_seed(0)
    model = cls(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms, too
            parameter.add_(torch.randn(parameter.shape).to(dtype) * 0.1)
    model.save_pretrained(folder, max_shard_size=shards)
    vocabulary = {f"t{index}": index for index in range(ids)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    return folder


def load(folder: Path, name: str) -> Any:
    model, info = MODELS[name][1].from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_more_rows_keep_every_logit_and_add_the_mean(name: str, tmp_path: Path) -> None:
    source = save(tmp_path / "hf", name)
    report = vocab(source, tmp_path / "out", rows=45)
    assert report.exit_code == 0 and len(report.facts["tensors"]) == MODELS[name][2]
    old, new = load(source, name), load(tmp_path / "out", name)
    assert new.config.vocab_size == 45
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        left, right = old(ids).logits, new(ids).logits
    assert right.shape[-1] == 45
    # One product of another width: the same sums, whose order a kernel may choose by the width.
    torch.testing.assert_close(right[..., :ROWS], left, rtol=1e-6, atol=1e-6)
    table, before = (model.get_input_embeddings().weight.detach() for model in (new, old))
    assert torch.equal(table[:ROWS], before)
    expected = before.double().mean(0).float().expand(8, -1)
    torch.testing.assert_close(table[ROWS:], expected, rtol=0, atol=1e-8)


def test_fewer_rows_cut_what_no_token_uses(tmp_path: Path) -> None:
    source = save(tmp_path / "hf", ids=30, shards="3KB")
    assert len(list(source.glob("*.safetensors"))) > 1
    vocab(source, tmp_path / "out", multiple=8)
    model = load(tmp_path / "out", "llama")
    assert model.config.vocab_size == 32 and torch.equal(
        model.lm_head.weight, load(source, "llama").lm_head.weight[:32]
    )
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(4 * p.numel() for p in model.parameters())
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_new_rows_have_the_dtype_and_are_rounded_as_torch_rounds(dtype: torch.dtype, tmp_path: Path) -> None:
    source = save(tmp_path / "hf", dtype=dtype)
    vocab(source, tmp_path / "out", rows=38)
    table = load(tmp_path / "out", "llama").lm_head.weight.detach()
    assert table.dtype == dtype
    expected = table[:ROWS].double().mean(0).float().to(dtype)
    assert torch.equal(table[ROWS], expected)


def test_drawn_rows_have_the_spread_of_the_others_and_repeat_themselves(tmp_path: Path) -> None:
    source = save(tmp_path / "hf")
    tables = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        vocab(source, tmp_path / name, rows=2000, new_rows=NewRows("normal", seed))
        tables.append(load(tmp_path / name, "llama").lm_head.weight.detach().numpy())
    assert np.array_equal(tables[0], tables[1]) and not np.array_equal(tables[0][ROWS:], tables[2][ROWS:])
    # The deviation of n draws is known to 1/sqrt(2n), here 1.6 %; five of those.
    np.testing.assert_allclose(tables[0][ROWS:].std(0), tables[0][:ROWS].std(0), rtol=0.08)


REFUSED = [
    ({"rows": ROWS}, "has 37 rows already"),
    ({"rows": 20}, "tokenizer.json uses id 36, so 20 rows are too few"),
]


@pytest.mark.parametrize(("options", "expected"), REFUSED)
def test_what_would_lose_tokens_is_refused(options: dict[str, int], expected: str, tmp_path: Path) -> None:
    source = save(tmp_path / "hf")
    with pytest.raises(UserError, match=expected):
        vocab(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_special_id_beyond_the_tokenizer_is_kept(tmp_path: Path) -> None:
    source = save(tmp_path / "hf", ids=10)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "eos_token_id": [2, 33]}))
    with pytest.raises(UserError, match="eos_token_id is 33, so 10 rows are too few"):
        vocab(source, tmp_path / "out")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path / "hf", ids=40)
    assert main(["vocab", str(source), "-o", str(tmp_path / "out"), "--json"]) == 0
    report = Report.from_json(_written(tmp_path, capsys.readouterr().out))
    assert [stage.message for stage in report.stages] == [
        "vocab_size 37 -> 40: 3 rows added (mean)",
        "12 tensors keep their bytes",
    ]
    assert main(["vocab", str(source), "-o", str(tmp_path / "out")]) == 2
    assert "exists and is not empty" in capsys.readouterr().err


def _written(folder: Path, text: str) -> Path:
    path = folder / "report.json"
    path.write_text(text)
    return path
