"""States of weights: every parameter moved, files and dtypes as they were, attention sharp and routers uneven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity_models import make
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mappings.errors import UserError
from migrate.parity import command
from migrate.parity.inputs import make_batch, unseen
from migrate.parity.perturbed import INIT, STORED, TRAINED, perturbed


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {k: v for path in sorted(directory.glob("*.safetensors")) for k, v in load_file(path).items()}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama") / "model")


@pytest.mark.parametrize("state", [INIT, TRAINED])
def test_every_parameter_moves_the_same_way_each_time(state: str, llama: Path, tmp_path: Path) -> None:
    before = tensors(llama)
    one, again, other = (
        tensors(perturbed(llama, tmp_path / str(number), state, seed)) for number, seed in enumerate((3, 3, 4))
    )
    assert one.keys() == before.keys()
    for name, value in one.items():
        assert torch.equal(value, again[name])
        assert (value != before[name]).float().mean() > 0.99 and (value != other[name]).float().mean() > 0.99
        if state == INIT:
            assert (value - before[name]).std() == pytest.approx(0.02, rel=0.3)
    assert torch.equal(before["lm_head.weight"], tensors(llama)["lm_head.weight"]), "the original is as it was"


def test_shards_dtypes_and_copies_stay_what_they_are(tmp_path: Path) -> None:
    model = make("qwen2", tmp_path / "model", tie_word_embeddings=True)
    values = {name: value.bfloat16() for name, value in tensors(model).items()}
    table = "model.embed_tokens.weight"
    values |= {"lm_head.weight": values[table].clone(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    (model / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(values)}
    for file in set(files.values()):
        save_file({name: value for name, value in values.items() if files[name] == file}, model / file)
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    moved = perturbed(model, tmp_path / "moved", TRAINED, 0)
    for name, file in files.items():
        with safe_open(moved / file, framework="pt") as stored:
            assert stored.get_tensor(name).dtype is values[name].dtype
    after = tensors(moved)
    assert torch.equal(after["lm_head.weight"], after[table]) and not torch.equal(after[table], values[table])


def test_other_states_and_dtypes_are_refused(llama: Path, tmp_path: Path) -> None:
    assert perturbed(llama, tmp_path / "none", STORED, 0) == llama
    with pytest.raises(UserError, match="'better' is none of stored, init, trained"):
        perturbed(llama, tmp_path / "none", "better", 0)
    save_file({name: value.double() for name, value in tensors(llama).items()}, llama.parent / "model.safetensors")
    (llama.parent / "config.json").write_bytes((llama / "config.json").read_bytes())
    with pytest.raises(UserError, match="is F64"):
        perturbed(llama.parent, tmp_path / "wide", INIT, 0)
    with pytest.raises(UserError, match="compare two as they are stored"):
        command.model(llama, candidate=llama, state=INIT)


def loaded(directory: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    return model.eval()


def test_trained_attention_is_sharp(tmp_path: Path) -> None:
    model = make("llama", tmp_path / "model", scale=0.0)
    batch = make_batch(json.loads((model / "config.json").read_text()), 0)
    ids = torch.from_numpy(batch["input_ids"][:1])
    highest = {}
    for state in (INIT, TRAINED):
        with torch.no_grad():
            outputs = loaded(perturbed(model, tmp_path / state, state, 0))(ids, output_attentions=True)
        late = [weights[..., 20:, :].max(-1).values.mean() for weights in outputs.attentions]
        highest[state] = float(np.mean(late))
    # A query sees 31 keys on average: evenly it would give each 0.03.
    assert highest[INIT] < 0.1 and highest[TRAINED] > 0.3, highest


def test_trained_routers_route_unevenly(tmp_path: Path) -> None:
    model = loaded(perturbed(make("qwen3_moe", tmp_path / "model", scale=0.0), tmp_path / "moved", TRAINED, 0))
    batch = make_batch(model.config.to_dict(), 0)
    chosen: list[torch.Tensor] = []
    gate = model.model.layers[0].mlp.gate
    gate.register_forward_hook(lambda module, args, output: chosen.append(output[2]))
    model.set_experts_implementation("eager")
    with torch.no_grad():
        model(torch.from_numpy(batch["input_ids"]))
    counts = torch.bincount(chosen[0].flatten(), minlength=model.config.num_experts).float()
    assert counts.max() > 1.4 * counts.mean() and counts.min() < 0.6 * counts.mean(), counts


def test_a_batch_reaches_beyond_a_window_or_says_that_it_does_not() -> None:
    config = {"vocab_size": 11, "max_position_embeddings": 2000, "sliding_window": 100, "attention_dropout": 0.1}
    assert make_batch(config, 0)["input_ids"].shape == (3, 109)
    assert "sliding_window 100" not in unseen(config, 109)
    assert unseen(config, 109)["attention_dropout 0.1"] == "both sides evaluate, and drop nothing"
    wide = {**config, "sliding_window": 4096}
    assert make_batch(wide, 0)["input_ids"].shape == (3, 41)
    assert "beyond" in unseen(wide, 41)["sliding_window 4096"]
