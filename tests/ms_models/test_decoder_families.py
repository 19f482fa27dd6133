"""Decoder families against transformers on CPU in fp32: logits, loss, every gradient, generated tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn, ops
from tiny_models import CONFIGS, Answer, Case, generated, gradient_errors, load, logits_error, make_case, relative, run

from ms_models.families import decoder
from ms_models.families.causal_lm import CausalLM
from ms_models.families.llama import model as llama_model
from ms_models.layers import core
from ms_models.layers.norm import RMSNorm
from ms_models.layers.rotary import Rotary

# fp32 rounding in another order of summation; measured 5e-7 (logits) and 3e-6 (gradients) on these models.
LOGITS, GRADIENT, LOSS = 1e-5, 1e-4, 1e-5
FAULT = 10  # a planted fault must exceed a tolerance this many times

ms.runtime.launch_blocking()


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The model with the most parts: tied head, biases everywhere, scaled rotary frequencies."""
    return make_case("llama3-tied-biases", tmp_path_factory.mktemp("biased") / "model")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("llama", tmp_path_factory.mktemp("untied") / "model")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("mistral", tmp_path_factory.mktemp("windowed") / "model")


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("qwen3-biases", tmp_path_factory.mktemp("normed") / "model")


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("gemma2", tmp_path_factory.mktemp("capped") / "model")


@pytest.mark.parametrize("jit", [False, True], ids=["pynative", "jit"])
def test_equals_transformers(case: Case, jit: bool) -> None:
    answer = run(load(case), case, jit=jit)
    assert answer.logits.shape == case.logits.shape
    assert logits_error(answer, case) < LOGITS
    assert answer.count == case.count
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    errors = gradient_errors(answer, case)
    assert len(errors) == len(list(case.reference.parameters()))
    assert max(errors.values()) < GRADIENT, errors


def test_parameters_are_named_and_shaped_as_in_transformers(case: Case) -> None:
    model = load(case)
    expected = {name: tuple(p.shape) for name, p in case.reference.named_parameters()}
    assert {p.name: p.shape for p in model.get_parameters()} == expected
    assert set(model.held) == set(expected)


def test_position_ids_are_used(case: Case) -> None:
    positions = np.cumsum(1 + case.input_ids % 3, axis=1)  # uneven steps: a mere shift would change nothing
    ids, mask, at = (torch.tensor(a, dtype=torch.long) for a in (case.input_ids, case.attention_mask, positions))
    with torch.no_grad():
        expected = case.reference(ids, attention_mask=mask, position_ids=at).logits.numpy()
    found = load(case)(*(ms.Tensor(a.astype(np.int32)) for a in (case.input_ids, case.attention_mask, positions)))
    tokens = case.attention_mask == 1
    assert relative(found.asnumpy()[tokens], expected[tokens]) < LOGITS
    assert relative(case.logits[tokens], expected[tokens]) > FAULT * LOGITS  # the positions matter


def test_no_mask_means_all_ones(case: Case) -> None:
    model = load(case)
    ids = ms.Tensor(case.input_ids)
    assert np.array_equal(model(ids).asnumpy(), model(ids, ms.Tensor(np.ones_like(case.input_ids))).asnumpy())


def test_generates_the_same_tokens(case: Case) -> None:
    prompt, mask = case.input_ids[::2], case.attention_mask[::2]  # one full row, one padded on the left
    found, expected = generated(case, prompt, mask)
    assert found.shape == (2, prompt.shape[1] + 12)
    assert np.array_equal(found, expected)


def test_generation_stops_each_row_at_its_end_token(untied: Case) -> None:
    prompt, mask = untied.input_ids[::2], untied.attention_mask[::2]
    model = load(untied)
    model.config = replace(model.config, eos_token_ids=())
    free = model.generate(ms.Tensor(prompt), 12, ms.Tensor(mask)).asnumpy()
    new = free[:, prompt.shape[1] :]
    end = int(next(token for token in new[0] if token not in new[1]))  # ends the first row only
    stop = int((new[0] == end).argmax())
    model.config = replace(model.config, eos_token_ids=(end,), pad_token_id=7)
    found = model.generate(ms.Tensor(prompt), 12, ms.Tensor(mask)).asnumpy()[:, prompt.shape[1] :]
    assert np.array_equal(found[0], [*new[0, : stop + 1], *[7] * (11 - stop)])
    assert np.array_equal(found[1], new[1])


def test_labels_outside_the_vocabulary_make_the_loss_nan(biased: Case) -> None:
    model = load(biased)
    right = ms.Tensor(biased.input_ids)
    for wrong in (model.config.vocab_size, -1):
        labels = biased.input_ids.copy()
        labels[1, 3] = wrong
        assert np.isnan(model.loss(right, ms.Tensor(labels))[0].asnumpy())
    assert np.isfinite(model.loss(right, right)[0].asnumpy())


# Faults a migration makes, planted one at a time; the comparison above must see each of them.


def interleaved(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates neighbouring pairs instead of halves."""
    first, second = x[..., 0::2], x[..., 1::2]
    return ops.stack((first * cos - second * sin, second * cos + first * sin), -1).reshape(x.shape)


def wrong_group_order(q: Any, k: Any, v: Any, bias: Any, scale: Any, cap: Any) -> Any:
    """Key head j serves the query heads j, j + K, ... instead of consecutive ones."""
    batch, length, heads, width = q.shape
    groups = k.shape[2]
    q = q.reshape(batch, length, heads // groups, groups, width).swapaxes(2, 3).reshape(q.shape)
    y = right_attention(q, k, v, bias, scale, cap).reshape(batch, length, groups, heads // groups, width)
    return y.swapaxes(2, 3).reshape(batch, length, heads * width)


right_attention = core.grouped_attention
right_bias = decoder.causal_bias


def mask_off_by_one(queries: int, keys: int, mask: Any, positions: Any = None) -> Any:
    """Lets every query see one key of its future."""
    bias = right_bias(queries, keys + 1, None if mask is None else ops.concat((mask, mask[:, -1:]), 1))
    return bias[..., 1:]


def padding_ignored(queries: int, keys: int, mask: Any, positions: Any = None) -> Any:
    return right_bias(queries, keys, None)


def plant_rope_interleaved(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    patch.setattr(llama_model, "rotate", interleaved)
    return load(case)


def plant_group_order(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    patch.setattr(core, "grouped_attention", wrong_group_order)
    return load(case)


def plant_mask_off_by_one(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    patch.setattr(decoder, "causal_bias", mask_off_by_one)
    return load(case)


def plant_padding_ignored(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    patch.setattr(decoder, "causal_bias", padding_ignored)
    return load(case)


def plant_bias_dropped(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    model = load(case)
    for parameter in model.get_parameters():
        if parameter.name == "model.layers.1.self_attn.v_proj.bias":
            parameter.set_data(ops.zeros_like(parameter))
    return model


def plant_epsilon(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    model = load(case)
    for _, cell in model.cells_and_names():
        if isinstance(cell, RMSNorm):
            cell.eps = 1e-6
    return model


def plant_rope_unscaled(patch: pytest.MonkeyPatch, case: Case) -> CausalLM:
    model = load(case)
    rope = type(model.config.rope)(model.config.rope.theta)
    model.body.rotary = Rotary(rope, model.config.head_dim)
    return model


FAULTS = [
    plant_rope_interleaved,
    plant_group_order,
    plant_mask_off_by_one,
    plant_padding_ignored,
    plant_bias_dropped,
    plant_epsilon,
    plant_rope_unscaled,
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_faults_are_seen(
    biased: Case, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch, Case], CausalLM]
) -> None:
    answer = run(plant(monkeypatch, biased), biased, jit=False)
    assert logits_error(answer, biased) > FAULT * LOGITS
    assert max(gradient_errors(answer, biased).values()) > FAULT * GRADIENT


def test_faults_in_the_gradient_only_are_seen(biased: Case) -> None:
    answer = run(load(biased), biased, jit=False)
    name = "model.layers.1.self_attn.k_proj.weight"
    for wrong in (answer.gradients[name] * 1.001, np.roll(answer.gradients[name], 1)):
        spoiled = Answer(answer.logits, answer.loss, answer.count, {**answer.gradients, name: wrong})
        assert gradient_errors(spoiled, biased)[name] > GRADIENT


def test_a_pad_token_that_learns_is_seen(untied: Case) -> None:
    model = load(untied)
    model.body.embed_tokens.padding_id = None
    errors = gradient_errors(run(model, untied, jit=False), untied)
    wrong = {name for name, error in errors.items() if error > GRADIENT}
    assert wrong == {"model.embed_tokens.weight"}  # the logits do not show it


@pytest.mark.parametrize("window", [3, 5, None])
def test_a_wrong_window_is_seen(window: int | None, windowed: Case) -> None:
    model = load(windowed)
    assert model.body.windows == (4,)
    model.body.windows = (window,)
    answer = run(model, windowed, jit=False)
    assert logits_error(answer, windowed) > FAULT * LOGITS
    assert max(gradient_errors(answer, windowed).values()) > FAULT * GRADIENT


@pytest.mark.parametrize("kind", ["q_norm", "k_norm"])
def test_a_norm_of_heads_that_is_left_out_is_seen(kind: str, normed: Case) -> None:
    model = load(normed)
    setattr(model.body.layers[1].self_attn, kind, nn.Identity())
    found = model(ms.Tensor(normed.input_ids), ms.Tensor(normed.attention_mask)).asnumpy()
    tokens = normed.attention_mask == 1
    assert relative(found[tokens], normed.logits[tokens]) > FAULT * LOGITS


def forget_scores_cap(model: CausalLM) -> None:
    model.body.layers[1].self_attn.core.cap = None


def forget_logits_cap(model: CausalLM) -> None:
    model.cap = None


def forget_embedding_scale(model: CausalLM) -> None:
    model.body.embed_tokens.scale = None


def shift_windows(model: CausalLM) -> None:
    model.body.window_of_layer = (1, 0, 1)


GEMMA_FAULTS = [forget_scores_cap, forget_logits_cap, forget_embedding_scale, shift_windows]


@pytest.mark.parametrize("plant", GEMMA_FAULTS, ids=lambda plant: plant.__name__)
def test_what_only_gemma_has_is_seen_when_wrong(plant: Callable[[CausalLM], None], capped: Case) -> None:
    model = load(capped)
    assert model.body.window_of_layer == (0, 1, 0)
    plant(model)
    answer = run(model, capped, jit=False)
    assert logits_error(answer, capped) > FAULT * LOGITS
    assert max(gradient_errors(answer, capped).values()) > FAULT * GRADIENT


def test_labels_that_are_not_shifted_are_seen(biased: Case) -> None:
    model = load(biased)
    rolled = np.roll(biased.labels, 1, axis=1)
    total, _ = model.loss(*(ms.Tensor(a) for a in (biased.input_ids, rolled, biased.attention_mask)))
    assert float(total.asnumpy()) != pytest.approx(biased.loss, rel=FAULT * LOSS)


def test_reference_is_reproducible(biased: Case, tmp_path: Path) -> None:
    again = make_case("llama3-tied-biases", tmp_path / "model")
    assert np.array_equal(again.logits, biased.logits)
