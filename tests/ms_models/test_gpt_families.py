"""GPT-2 and GPT-NeoX against transformers on CPU in fp32: logits, loss, every gradient, generated tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from tiny_gpts import CONFIGS, make_gpt_case
from tiny_models import Case, generated, gradient_errors, load, logits_error, relative, run

from mappings.errors import UserError
from mappings.families import family_for_config
from ms_models.families.causal_lm import CausalLM
from ms_models.families.gpt2.config import GPT2Config
from ms_models.families.gpt_neox.config import GPTNeoXConfig, rotary_fields
from ms_models.layers.activation import gelu
from ms_models.layers.rotary import Rotary

# fp32 rounding in another order of summation; measured 6e-7 (logits) and 2e-6 (gradients) on these models.
LOGITS, GRADIENT, LOSS = 1e-5, 1e-4, 1e-5
FAULT = 10  # a planted fault must exceed a tolerance this many times
COMPILED = ("gpt2", "gpt_neox")  # the others differ in constants and branches taken while compiling

ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("gpts")
    return {name: make_gpt_case(name, folder / name) for name in CONFIGS}


@pytest.fixture(params=CONFIGS)
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


@pytest.mark.parametrize(("name", "jit"), [*((name, False) for name in CONFIGS), *((name, True) for name in COMPILED)])
def test_equals_transformers(name: str, jit: bool, cases: dict[str, Case]) -> None:
    case = cases[name]
    answer = run(load(case), case, jit=jit)
    assert answer.logits.shape == case.logits.shape
    assert logits_error(answer, case) < LOGITS
    assert answer.count == case.count
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    errors = gradient_errors(answer, case)
    assert len(errors) == len(list(case.reference.parameters()))
    assert max(errors.values()) < GRADIENT, errors


def test_parameters_are_shaped_as_in_transformers(case: Case) -> None:
    model = load(case)
    assert {p.name: tuple(p.shape) for p in model.get_parameters()} == {k: g.shape for k, g in case.gradients.items()}


def test_position_ids_are_used(case: Case) -> None:
    positions = np.cumsum(1 + case.input_ids % 2, axis=1)  # uneven steps: a mere shift would not move rotary positions
    ids, mask, at = (torch.tensor(a, dtype=torch.long) for a in (case.input_ids, case.attention_mask, positions))
    with torch.no_grad():
        expected = case.reference(ids, attention_mask=mask, position_ids=at).logits.numpy()
    found = load(case)(*(ms.Tensor(a.astype(np.int32)) for a in (case.input_ids, case.attention_mask, positions)))
    tokens = case.attention_mask == 1
    assert relative(found.asnumpy()[tokens], expected[tokens]) < LOGITS
    assert relative(case.logits[tokens], expected[tokens]) > FAULT * LOGITS  # the positions matter


def test_generates_the_same_tokens(case: Case) -> None:
    prompt, mask = case.input_ids[::2], case.attention_mask[::2]  # one full row, one padded on the left
    found, expected = generated(case, prompt, mask)
    assert found.shape == (2, prompt.shape[1] + 12)
    assert np.array_equal(found, expected)


def test_saves_what_it_loaded(case: Case, tmp_path: Path) -> None:
    load(case).save_pretrained(tmp_path / "saved")
    stored = sorted(path.name for path in case.directory.iterdir())
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == stored
    tensors = [name for name in stored if name.endswith(".safetensors")]
    assert tensors
    for name in tensors:
        assert contents(tmp_path / "saved" / name) == contents(case.directory / name), name


def contents(path: Path) -> dict[str, tuple[Any, bytes]]:
    from safetensors.numpy import load_file

    return {name: (values.dtype, values.tobytes()) for name, values in load_file(path).items()}


# Faults a migration makes, planted one at a time.


def parameter(model: CausalLM, name: str) -> ms.Parameter:
    return next(p for p in model.get_parameters() if p.name == name)


def rearrange(model: CausalLM, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    target = parameter(model, name)
    values = np.ascontiguousarray(change(target.asnumpy()))
    assert values.shape == tuple(target.shape)
    target.set_data(ms.Tensor(values))


def plant_untransposed(model: CausalLM) -> None:
    """A square Conv1D taken for a linear layer: no shape shows it."""
    rearrange(model, "transformer.h.1.attn.c_proj.weight", np.transpose)


def plant_keys_first(model: CausalLM) -> None:
    hidden = model.config.hidden_size
    rearrange(model, "transformer.h.0.attn.c_attn.weight", lambda w: np.roll(w, hidden, axis=1))


def plant_next_positions(model: CausalLM) -> None:
    rearrange(model, "transformer.wpe.weight", lambda w: np.roll(w, 1, axis=0))


def plant_same_scale(model: CausalLM) -> None:
    """The second layer's scores are scaled as the first one's."""
    cores = [layer.attn.core for layer in model.body.layers]
    assert cores[0].scale_ == 2 * cores[1].scale_
    cores[1].scale_ = cores[0].scale_


def plant_parts_first(model: CausalLM) -> None:
    """All queries, all keys, all values, in place of the three of one head after another."""
    heads, width = model.config.num_attention_heads, model.config.head_dim

    def change(weight: np.ndarray) -> np.ndarray:
        return weight.reshape(heads, 3, width, -1).swapaxes(0, 1).reshape(weight.shape)

    rearrange(model, "gpt_neox.layers.0.attention.query_key_value.weight", change)


def plant_other_residual(model: CausalLM) -> None:
    for layer in model.body.layers:
        layer.parallel_residual = not layer.parallel_residual


def plant_whole_rotary(model: CausalLM) -> None:
    model.body.rotary = Rotary(replace(model.config.rope, partial_rotary_factor=1.0), model.config.head_dim)


def plant_other_base(model: CausalLM) -> None:
    model.body.rotary = Rotary(replace(model.config.rope, theta=500.0), model.config.head_dim)


def plant_bias_twice(model: CausalLM) -> None:
    """Each of two ranks adds the bias behind a row-parallel layer."""
    rearrange(model, "gpt_neox.layers.1.attention.dense.bias", lambda b: 2 * b)


FAULTS = [
    ("gpt2", plant_untransposed),
    ("gpt2", plant_keys_first),
    ("gpt2", plant_next_positions),
    ("gpt2-other", plant_same_scale),
    ("gpt_neox", plant_parts_first),
    ("gpt_neox", plant_other_residual),
    ("gpt_neox", plant_whole_rotary),
    ("gpt_neox", plant_bias_twice),
    ("gpt_neox-serial-tied", plant_other_residual),
    ("gpt_neox-serial-tied", plant_other_base),
]


@pytest.mark.parametrize(("name", "plant"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_faults_are_seen(name: str, plant: Callable[[CausalLM], None], cases: dict[str, Case]) -> None:
    model = load(cases[name])
    plant(model)
    answer = run(model, cases[name], jit=False)
    assert logits_error(answer, cases[name]) > FAULT * LOGITS
    assert max(gradient_errors(answer, cases[name]).values()) > FAULT * GRADIENT


def test_the_other_gelu_is_seen(cases: dict[str, Case]) -> None:
    model = load(cases["gpt2"])
    for layer in model.body.layers:
        layer.mlp.act = gelu
    answer = run(model, cases["gpt2"], jit=False)
    assert logits_error(answer, cases["gpt2"]) > FAULT * LOGITS
    assert max(gradient_errors(answer, cases["gpt2"]).values()) > 2 * GRADIENT  # the two differ by 5e-4 at most


def test_positions_that_count_padding_are_seen_in_generation(cases: dict[str, Case]) -> None:
    """Positions begin at the first token of a row that is padded on the left."""
    case = cases["gpt2"]
    ids, mask = case.input_ids[2:], case.attention_mask[2:]
    assert mask[0, 0] == 0
    right = np.maximum(mask.cumsum(1) - 1, 0)
    with torch.no_grad():
        ids_, mask_, right_ = (torch.tensor(array, dtype=torch.long) for array in (ids, mask, right))
        expected = case.reference(ids_, attention_mask=mask_, position_ids=right_).logits
    model = load(case)
    tokens = mask == 1
    found = model(ms.Tensor(ids), ms.Tensor(mask), ms.Tensor(right.astype(np.int32))).asnumpy()
    counted = model(ms.Tensor(ids), ms.Tensor(mask)).asnumpy()
    assert relative(found[tokens], expected.numpy()[tokens]) < LOGITS
    assert relative(counted[tokens], expected.numpy()[tokens]) > FAULT * LOGITS


# The table of positions ends.


def test_sequences_past_the_table_of_positions_are_refused(cases: dict[str, Case]) -> None:
    model = load(cases["gpt2"])
    longest = model.config.max_position_embeddings
    ids = ms.Tensor(np.zeros((1, longest + 1), np.int32))
    assert np.isfinite(model(ids[:, :longest]).asnumpy()).all()
    for forward in (model, ms.jit(model.construct)):
        with pytest.raises(ValueError, match="longer than n_positions"):
            forward(ids).asnumpy()
    beyond = ms.Tensor(np.full((1, 2), longest, np.int32))
    assert np.isnan(model(ids[:, :2], None, beyond).asnumpy()).all()
    with pytest.raises(UserError, match=f"generate: 28 tokens and 5 new ones are more than n_positions={longest}"):
        model.generate(ids[:, :28], 5)
    assert model.generate(ids[:, :28], 4).shape == (1, 32)


# config.json


def read(**fields: Any) -> GPT2Config | GPTNeoXConfig:
    kind = fields.get("model_type", "gpt2")
    sizes = {
        "gpt2": {"n_embd": 12, "n_layer": 1, "n_head": 2, "n_positions": 8},
        "gpt_neox": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 5,
        },
    }[kind]
    raw = {"model_type": kind, "vocab_size": 11, **sizes, **fields}
    reader: Any = GPT2Config if kind == "gpt2" else GPTNeoXConfig
    return reader.read(raw, family_for_config(raw))


def test_dropout_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    read(attn_pdrop=0, resid_pdrop=0.0, embd_pdrop=0.0)
    read(model_type="gpt_neox")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        read(attn_pdrop=0.0)  # 0.1 is what transformers takes for the two others
        read(model_type="gpt_neox", hidden_dropout=0.2)
    first, second = (record.getMessage() for record in caplog.records)
    assert "dropout is not applied" in first and "(resid_pdrop=0.1, embd_pdrop=0.1)" in first
    assert "(hidden_dropout=0.2)" in second


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
        ({"scale_attn_weights": "yes"}, "scale_attn_weights must be true or false, found 'yes'"),
        ({"attn_pdrop": 1}, "attn_pdrop must be a rate from 0 to below 1, found 1"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not supported"),
        ({"n_head": 5}, "n_head=5 does not divide n_embd=12"),
        ({"model_type": "gpt_neox", "hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"model_type": "gpt_neox", "use_parallel_residual": 1}, "use_parallel_residual must be true or false"),
        ({"model_type": "gpt_neox", "rope_scaling": {"type": "abc"}}, "rope type 'abc' is not supported"),
    ],
)
def test_unsupported_settings_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(**fields)
    assert "\n" not in str(caught.value)


def test_rotary_settings_of_transformers_4_and_5_mean_the_same() -> None:
    old = rotary_fields({"rotary_pct": 0.5, "rotary_emb_base": 777})
    new = rotary_fields({"rope_parameters": {"rope_theta": 777, "partial_rotary_factor": 0.5, "rope_type": "default"}})
    config = read(model_type="gpt_neox", rotary_pct=0.5, rotary_emb_base=777)
    assert config.rope == read(model_type="gpt_neox", **new).rope == read(model_type="gpt_neox", **old).rope
    assert config.rope is not None and (config.rope.theta, config.rope.partial_rotary_factor) == (777, 0.5)
    plain = read(model_type="gpt_neox").rope
    assert plain is not None and (plain.theta, plain.partial_rotary_factor) == (10000, 0.25)
