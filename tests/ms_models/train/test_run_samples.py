"""Continuations are those of transformers where the likeliest token is taken, and follow the softmax where drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM as TorchAuto

from mappings.errors import UserError
from ms_models import AutoModelForCausalLM
from ms_models.data.loader import validation_batches
from ms_models.train.config import RunConfig, load
from ms_models.train.launch.evaluating import layout_of
from ms_models.train.samples import Drawing, Sampler
from tests.ms_models.train.run_helpers import write_config, write_data, write_model, write_tokenizer


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    model, data = write_model(tmp_path / "model"), write_data(tmp_path / "data")
    metrics = {"prompts": ["w3 w7 w2", "w5"], "prefixes": 1, "prefix_tokens": 4, "sample_tokens": 6}
    write_tokenizer(model)
    return load(write_config(tmp_path / "run.yaml", model, data, tmp_path / "run", metrics=metrics))


def test_the_likeliest_continuations_are_those_of_transformers(config: RunConfig) -> None:
    assert config.model.path is not None
    model = AutoModelForCausalLM.from_pretrained(config.model.path)
    found = Sampler(config, model).samples(1)
    reference = TorchAuto.from_pretrained(config.model.path, attn_implementation="eager")
    row = next(iter(validation_batches(Path(config.data.path or ""), micro_batch_size=1)))
    real = row["input_ids"][0][row["attention_mask"][0] != 0][:4]
    words = Sampler(config, model)._texts
    assert len(found) == 3
    for prompt, sample in zip(([3, 7, 2], [5], real.tolist()), found, strict=True):
        ids = torch.tensor([prompt])
        made = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, eos_token_id=None
        )
        expected = made[0, len(prompt) :].tolist()
        if 1 in expected:  # the end token of the model; transformers was told of none
            expected = expected[: expected.index(1) + 1]
        assert sample["text"].startswith(words.text(expected)), sample
        assert sample["prompt"] == words.text(prompt)


def test_draws_follow_the_softmax_and_the_seed() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2]], np.float32)).repeat(20_000, 0)
    counts = np.bincount(Drawing(1.0, [7, 1])(logits), minlength=3) / len(logits)
    assert counts == pytest.approx([0.5, 0.3, 0.2], abs=0.015)  # four standard deviations of a share of one half
    cold = np.bincount(Drawing(0.5, [7, 1])(logits), minlength=3) / len(logits)
    squares = np.array([0.25, 0.09, 0.04])
    assert cold == pytest.approx(squares / squares.sum(), abs=0.015)
    assert (Drawing(1.0, [7, 1])(logits) == Drawing(1.0, [7, 1])(logits)).all()
    assert (Drawing(1.0, [7, 1])(logits) != Drawing(1.0, [7, 2])(logits)).any()


def test_what_cannot_be_continued_is_said(config: RunConfig) -> None:
    assert config.model.path is not None
    model = AutoModelForCausalLM.from_pretrained(config.model.path)
    cut = replace(config, layout=replace(config.layout, pp=2))
    sampler = Sampler(cut, model)
    assert sampler.refusal is not None and "pp=2" in sampler.refusal and sampler.samples(1) == []
    long = Sampler(replace(config, metrics=replace(config.metrics, prompts=("w1 " * 32,))), model)
    assert long.refusal is not None and "32 tokens fills the 32 positions" in long.refusal and long.samples(1) == []
    (Path(config.model.path) / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="tokenizer"):
        Sampler(config, model)
    without = replace(config, metrics=replace(config.metrics, prompts=()))
    (sample,) = Sampler(without, model).samples(1)
    assert [int(number) for number in sample["prompt"].split()][:1] and len(sample["text"].split()) <= 6


def test_axes_are_read_from_the_command_line() -> None:
    assert layout_of("tp=2, dp=4") == {"tp": 2, "dp": 4}
    for wrong in ("zero=1", "tp", "tp=x", "tb=2"):
        with pytest.raises(UserError, match="must be like"):
            layout_of(wrong)
    assert json.dumps(layout_of("pp=2")) == '{"pp": 2}'
