"""What encoders read, refuse and write back: names, optional heads, new heads, bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import CONFIGS, PRETRAINING, build, load, make_case, prefix, segments
from tiny_models import Case, relative

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.auto_masked_lm import AutoModelForMaskedLM, register, registered
from ms_models.families.bert import BertForMaskedLM
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.place import ParallelOptions

LOGITS = 1e-5  # as in test_encoder_families.py

ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {name: make_case(name, tmp_path_factory.mktemp(name) / "model") for name in CONFIGS}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_transformers(name: str, cases: dict[str, Case]) -> None:
    case, model = cases[name], load(cases[name])
    expected = {key: tuple(p.shape) for key, p in case.reference.named_parameters()}
    assert {p.name: p.shape for p in model.get_parameters()} == expected
    assert {p.name for p in model.trainable_params()} == set(case.gradients)
    kept = set(expected) - set(case.gradients)
    assert any("pooler" in key for key in kept) == any("seq_relationship" in key for key in kept)
    assert any("pooler" in key for key in kept) == (name in PRETRAINING)


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in directory.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(("name", "dtype"), [("bert", torch.bfloat16), ("xlm-roberta", torch.float32)])
def test_saves_what_it_loaded_bit_for_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    reference = build(name, tmp_path / "model", dtype)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "again")
    before, after = tensors(tmp_path / "model"), tensors(tmp_path / "again")
    assert set(before) == set(after)
    assert all(torch.equal(before[key], after[key]) and after[key].dtype == dtype for key in before)
    files = [sorted(path.name for path in (tmp_path / kind).iterdir()) for kind in ("model", "again")]
    assert files[0] == files[1]
    again = type(reference).from_pretrained(tmp_path / "again", dtype=dtype)
    values = dict(again.named_parameters())
    assert all(torch.equal(p, values[key]) for key, p in reference.named_parameters())


def test_tensorflow_names_of_old_checkpoints_are_read_and_kept(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["chinese-roberta"]
    (tmp_path / "old").mkdir()
    shutil.copyfile(case.directory / "config.json", tmp_path / "old" / "config.json")
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for key, tensor in tensors(case.directory).items()
    }
    position_ids = torch.arange(29)[None]
    table = old["bert.embeddings.word_embeddings.weight"].clone()
    copies = {"bert.embeddings.position_ids": position_ids, "cls.predictions.decoder.weight": table}
    save_file({**old, **copies}, tmp_path / "old" / "model.safetensors", {"format": "pt"})
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "old")
    model.set_train(False)
    kinds = ms.Tensor(segments("chinese-roberta"), ms.int32)
    found = model(ms.Tensor(case.input_ids), ms.Tensor(case.attention_mask), kinds).asnumpy()
    tokens = case.attention_mask == 1
    assert relative(found[tokens], case.logits[tokens]) < LOGITS
    model.save_pretrained(tmp_path / "again")
    after = tensors(tmp_path / "again")
    assert set(after) == set(old) and all(torch.equal(after[key], old[key]) for key in old)


def test_the_pooler_of_a_roberta_is_kept(cases: dict[str, Case], tmp_path: Path) -> None:
    """roberta-base is stored with one, which transformers' RobertaForMaskedLM leaves out."""
    shutil.copytree(cases["roberta"].directory, tmp_path / "model")
    stored = tensors(tmp_path / "model")
    pooler = {"roberta.pooler.dense.weight": torch.randn(48, 48), "roberta.pooler.dense.bias": torch.randn(48)}
    for file in (tmp_path / "model").glob("*.safetensors*"):
        file.unlink()
    save_file({**stored, **pooler}, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    assert not set(pooler) & {p.name for p in model.trainable_params()}
    model.save_pretrained(tmp_path / "again")
    after = tensors(tmp_path / "again")
    assert set(after) == {*stored, *pooler}
    assert all(torch.equal(after[key], tensor) for key, tensor in {**stored, **pooler}.items())


@pytest.mark.parametrize("name", ["bert-untied", "roberta"])
def test_a_model_without_head_gets_a_new_one_and_says_so(
    name: str, cases: dict[str, Case], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = cases[name]
    body: Any = case.reference.base_model
    body.save_pretrained(tmp_path / "body")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "body")
    model.set_train(False)
    names = {key for key, _ in case.reference.named_parameters() if not key.startswith(prefix(name))}
    assert set(model.new_weights) == names
    (record,) = caplog.records
    assert "no head for masked words" in record.message and all(key in record.message for key in names)
    values = {p.name: p.asnumpy() for p in model.get_parameters()}
    for key, parameter in body.named_parameters():
        assert np.array_equal(values[f"{prefix(name)}.{key}"], parameter.detach().numpy())
    for key in names:
        is_norm = "norm" in key.lower()
        wanted = (1.0 if is_norm else 0.02) if key.endswith("weight") else 0.0
        found = values[key].mean() if is_norm else values[key].std()
        assert found == pytest.approx(wanted, rel=0.1, abs=1e-7), key
    # What is saved is a model with a head, in transformers and here.
    model.save_pretrained(tmp_path / "whole")
    loaded: Any = type(case.reference).from_pretrained(tmp_path / "whole", output_loading_info=True)
    again, report = loaded
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert all(np.array_equal(values[key], p.detach().numpy()) for key, p in again.named_parameters())
    caplog.clear()
    reloaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "whole")
    assert not reloaded.new_weights and not caplog.records
    assert all(np.array_equal(values[p.name], p.asnumpy()) for p in reloaded.get_parameters())


def test_half_a_head_is_an_error(cases: dict[str, Case], tmp_path: Path) -> None:
    shutil.copytree(cases["bert"].directory, tmp_path / "copy")
    kept = {key: value for key, value in tensors(tmp_path / "copy").items() if "transform.dense" not in key}
    for file in (tmp_path / "copy").glob("*.safetensors*"):
        file.unlink()
    save_file(kept, tmp_path / "copy" / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"missing: cls\.predictions\.transform\.dense\.weight"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "copy")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
    ("roberta", {"is_decoder": True}, "is_decoder True is not supported"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention True is not supported"),
    ("bert", {"pruned_heads": {"0": [1]}}, r"pruned_heads \{'0': \[1\]\} is not supported"),
    ("bert", {"quantization_config": {"bits": 8}}, "quantized weights are not supported"),
    ("bert", {"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
    ("bert", {"num_attention_heads": 5}, "num_attention_heads=5 does not divide hidden_size=48"),
    ("bert", {"head_dim": 4}, "head_dim 4 is not supported; it must be 8"),
    ("bert", {"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be a share of at least 0 and below 1, found 1.0"),
    ("bert", {"pad_token_id": 101}, "pad_token_id must be a token id or null, found 101"),
    ("roberta", {"pad_token_id": None}, "pad_token_id is null, but positions are counted from it"),
    ("bert", {"model_type": "llama"}, "no encoder is registered for model_type 'llama'"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_not_supported_is_refused(
    name: str, change: dict[str, Any], message: str, cases: dict[str, Case], tmp_path: Path
) -> None:
    path = shutil.copytree(cases[name].directory, tmp_path / "copy") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "copy")


@pytest.mark.parametrize(
    ("layout", "recompute", "message"),
    [
        (ParallelLayout(pp=2), "none", "pp=2: encoders are cut over tp and replicated over dp, nothing else"),
        (ParallelLayout(cp=2), "none", "cp=2: encoders are cut over tp"),
        (ParallelLayout(dp=2, zero=3), "none", "zero=3 is not supported for encoders"),
        (ParallelLayout(tp=4), "none", "tp=4 does not divide the 6 heads"),
        (ParallelLayout(), "full", "recompute 'full' is not supported for encoders"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_layouts_that_encoders_are_not_built_for_are_refused(
    layout: ParallelLayout, recompute: str, message: str, cases: dict[str, Case]
) -> None:
    options = ParallelOptions(recompute=recompute)
    with pytest.raises(UserError, match=message):
        AutoModelForMaskedLM.from_pretrained(cases["bert"].directory, Mesh(layout), options)


def test_a_taken_model_type_is_refused() -> None:
    assert registered() == ["bert", "roberta", "xlm-roberta"]
    with pytest.raises(UserError, match="'bert' is already registered by ms_models"):
        register("bert", BertForMaskedLM)
