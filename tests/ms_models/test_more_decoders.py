"""Phi-3, GLM-4 and Gemma 3 against transformers on CPU in fp32: logits, loss, every gradient, generated tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn
from safetensors.torch import load_file
from tiny_decoders import CONFIGS, ORIGINAL
from tiny_models import Case, answers_of, build, generated, gradient_errors, load, logits_error, relative, run

from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.families.causal_lm import CausalLM
from ms_models.layers.rotary import RopeConfig, Rotary, rotate
from ms_models.parallel.mesh import Mesh

# fp32 rounding in another order of summation; measured 1e-6 (logits) and 4e-6 (gradients) on these models.
LOGITS, GRADIENT, LOSS = 1e-5, 1e-4, 1e-5
FAULT = 10  # a planted fault must exceed a tolerance this many times

ms.runtime.launch_blocking()
cases: dict[str, Case] = {}


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Cases by name, each made once."""

    def get(name: str) -> Case:
        if name not in cases:
            directory = tmp_path_factory.mktemp(name) / "model"
            cases[name] = answers_of(build(CONFIGS[name], directory), directory)
        return cases[name]

    return get


@pytest.fixture(params=CONFIGS)
def case(request: pytest.FixtureRequest, case_of: Callable[[str], Case]) -> Case:
    return case_of(request.param)


# Compiling takes four seconds each.
COMPILED = [
    pytest.param("phi3-longrope-tied", True, id="phi3-longrope-tied-jit"),
    pytest.param("gemma3_text", True, id="gemma3_text-jit"),
    *(pytest.param(name, True, id=f"{name}-jit", marks=pytest.mark.slow) for name in ("glm4", "phi3")),
]


@pytest.mark.parametrize(
    ("name", "jit"), [*(pytest.param(name, False, id=f"{name}-pynative") for name in CONFIGS), *COMPILED]
)
def test_equals_transformers(name: str, jit: bool, case_of: Callable[[str], Case]) -> None:
    case = case_of(name)
    answer = run(load(case), case, jit=jit)
    assert answer.logits.shape == case.logits.shape
    assert logits_error(answer, case) < LOGITS
    assert answer.count == case.count
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    errors = gradient_errors(answer, case)
    assert len(errors) == len(list(case.reference.parameters()))
    assert max(errors.values()) < GRADIENT, errors


def test_position_ids_are_used(case: Case) -> None:
    positions = np.cumsum(1 + case.input_ids % 3, axis=1)  # uneven steps: a mere shift would change nothing
    ids, mask, at = (torch.tensor(a, dtype=torch.long) for a in (case.input_ids, case.attention_mask, positions))
    with torch.no_grad():
        expected = case.reference(ids, attention_mask=mask, position_ids=at).logits.numpy()
    found = load(case)(*(ms.Tensor(a.astype(np.int32)) for a in (case.input_ids, case.attention_mask, positions)))
    tokens = case.attention_mask == 1
    assert relative(found.asnumpy()[tokens], expected[tokens]) < LOGITS
    assert relative(case.logits[tokens], expected[tokens]) > FAULT * LOGITS  # the positions matter


def test_generates_the_same_tokens(case: Case) -> None:
    found, expected = generated(case, case.input_ids[::2], case.attention_mask[::2])  # a full row, one padded left
    assert found.shape == (2, case.input_ids.shape[1] + 12)
    assert np.array_equal(found, expected)


def test_the_cache_is_made_again_where_phi3_grows_long(case_of: Callable[[str], Case]) -> None:
    """Keys turned by the short factors do not fit queries turned by the long ones."""
    case = case_of("phi3-longrope-tied")
    prompt = case.input_ids[:2, : ORIGINAL - 4]
    found, expected = generated(case, prompt, np.ones_like(prompt))
    assert np.array_equal(found, expected)
    # Token by token without a cache: each step reads the whole sequence.
    model = load(case)
    tokens = prompt
    for _ in range(12):
        last = model(ms.Tensor(tokens)).asnumpy()[:, -1]
        tokens = np.concatenate((tokens, last.argmax(-1)[:, None].astype(np.int32)), 1)
    assert np.array_equal(found, tokens)
    # What a cache that is kept would answer.
    ids = ms.Tensor(tokens[:, : ORIGINAL + 1])
    past = model.body(ids[:, :ORIGINAL])[1]
    stale = model.head(model.body(ids[:, ORIGINAL:], past=past)[0]).asnumpy()[:, -1]
    assert relative(stale, model(ids).asnumpy()[:, -1]) > FAULT * LOGITS
    assert model.cached_until == ORIGINAL and load(case_of("phi3")).cached_until is None


@pytest.mark.parametrize("name", ["phi3", "glm4", "gemma3_text"])
def test_round_trip_is_bit_identical(name: str, tmp_path: Path) -> None:
    reference = build(CONFIGS[name], tmp_path / "hf", torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    expected = {key: value.detach().float().numpy() for key, value in reference.named_parameters()}
    assert {p.name: p.shape for p in model.get_parameters()} == {key: value.shape for key, value in expected.items()}
    assert all(np.array_equal(p.asnumpy(), expected[p.name]) for p in model.get_parameters())
    model.save_pretrained(tmp_path / "back")
    before, after = (
        {key: tensor for file in (tmp_path / side).glob("*.safetensors") for key, tensor in load_file(file).items()}
        for side in ("hf", "back")
    )
    assert set(before) == set(after) and len(before) > 18
    assert all(torch.equal(before[key].view(torch.uint8), after[key].view(torch.uint8)) for key in before)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_holds_its_rows_of_each_part(rank: int, case_of: Callable[[str], Case]) -> None:
    """Of queries, keys and values, of gate and up."""
    case = case_of("phi3")
    whole = {name: tensor.detach().numpy() for name, tensor in case.reference.named_parameters()}
    model = AutoModelForCausalLM.from_pretrained(case.directory, Mesh(ParallelLayout(tp=2), rank))
    held = {p.name: p.asnumpy() for p in model.get_parameters()}
    parts = np.split(whole["model.layers.1.self_attn.qkv_proj.weight"], [48, 64])
    expected = np.concatenate([np.split(part, 2)[rank] for part in parts])
    assert np.array_equal(held["model.layers.1.self_attn.qkv_proj.weight"], expected)
    parts = np.split(whole["model.layers.1.mlp.gate_up_proj.weight"], 2)
    expected = np.concatenate([np.split(part, 2)[rank] for part in parts])
    assert np.array_equal(held["model.layers.1.mlp.gate_up_proj.weight"], expected)


# What only these families have, wrong in one place; the comparison above must see each of them.


def rows_reordered(model: CausalLM, name: str, order: Callable[[np.ndarray], np.ndarray]) -> None:
    (parameter,) = (p for p in model.get_parameters() if p.name == f"model.layers.1.{name}.weight")
    parameter.set_data(ms.Tensor(np.ascontiguousarray(order(parameter.asnumpy()))))


def keys_and_values_swapped(model: CausalLM) -> None:
    rows_reordered(model, "self_attn.qkv_proj", lambda w: np.concatenate((w[:48], w[64:], w[48:64])))


def gate_and_up_swapped(model: CausalLM) -> None:
    rows_reordered(model, "mlp.gate_up_proj", lambda w: np.concatenate((w[76:], w[:76])))


def gate_and_up_interleaved(model: CausalLM) -> None:
    rows_reordered(model, "mlp.gate_up_proj", lambda w: w.reshape(2, 76, 48).swapaxes(0, 1).reshape(152, 48))


def window_one_shorter(model: CausalLM) -> None:
    model.body.windows = (5,)


def with_rope(model: CausalLM, **changes: Any) -> None:
    rope = model.config.rope
    part = changes.pop("partial_rotary_factor", rope.partial_rotary_factor)
    rope = replace(rope, scaling=replace(rope.scaling, **changes), partial_rotary_factor=part)
    model.body.rotary = Rotary(rope, model.config.head_dim)


def short_factors_for_long(model: CausalLM) -> None:
    with_rope(model, original=100.0)


def attention_factor_forgotten(model: CausalLM) -> None:
    with_rope(model, scale=1.0)


def half_of_a_head_more(model: CausalLM) -> None:
    with_rope(model, partial_rotary_factor=1.0)


def halves_rotated(model: CausalLM) -> None:
    for layer in model.body.layers:
        layer.self_attn.turn = lambda x, rotary: rotate(x, rotary[0], rotary[1])


def norm_behind_attention_forgotten(model: CausalLM) -> None:
    model.body.layers[1].post_self_attn_layernorm = nn.Identity()


def norm_behind_feed_forward_forgotten(model: CausalLM) -> None:
    model.body.layers[1].post_mlp_layernorm = nn.Identity()


def norms_in_the_order_of_gemma(model: CausalLM) -> None:
    layer = model.body.layers[1]
    layer.post_self_attn_layernorm, layer.post_attention_layernorm = (
        layer.post_attention_layernorm,
        layer.post_self_attn_layernorm,
    )


def ropes_swapped(model: CausalLM) -> None:
    rotary = model.body.rotary
    rotary.full, rotary.local = rotary.local, rotary.full


def one_rope_for_all(model: CausalLM) -> None:
    model.body.rotary.local = model.body.rotary.full


def factor_forgotten(model: CausalLM) -> None:
    model.body.rotary.full = Rotary(RopeConfig(model.config.rope.theta), model.config.head_dim)


def windows_shifted(model: CausalLM) -> None:
    model.body.window_of_layer = (1, 0, 1)


def key_norm_from_zero(model: CausalLM) -> None:
    norm = model.body.layers[1].self_attn.k_norm
    norm.weight.set_data(norm.weight - 1.0)


def embedding_scale_forgotten(model: CausalLM) -> None:
    model.body.embed_tokens.scale = None


def cap_forgotten(model: CausalLM) -> None:
    model.cap = None


FAULTS: list[tuple[str, Callable[[CausalLM], None]]] = [
    ("phi3", keys_and_values_swapped),
    ("phi3", gate_and_up_swapped),
    ("phi3", gate_and_up_interleaved),
    ("phi3", window_one_shorter),
    ("phi3-longrope-tied", short_factors_for_long),
    ("phi3-longrope-tied", attention_factor_forgotten),
    ("glm4", half_of_a_head_more),
    ("glm4", halves_rotated),
    ("glm4", norm_behind_attention_forgotten),
    ("glm4", norm_behind_feed_forward_forgotten),
    ("glm4", norms_in_the_order_of_gemma),
    ("gemma3_text", ropes_swapped),
    ("gemma3_text", one_rope_for_all),
    ("gemma3_text", factor_forgotten),
    ("gemma3_text", windows_shifted),
    ("gemma3_text", key_norm_from_zero),
    ("gemma3_text", embedding_scale_forgotten),
    ("gemma3_text", cap_forgotten),
]


@pytest.mark.parametrize(("name", "plant"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_faults_are_seen(name: str, plant: Callable[[CausalLM], None], case_of: Callable[[str], Case]) -> None:
    case = case_of(name)
    model = load(case)
    plant(model)
    found = model(ms.Tensor(case.input_ids), ms.Tensor(case.attention_mask)).asnumpy()
    tokens = case.attention_mask == 1
    assert relative(found[tokens], case.logits[tokens]) > FAULT * LOGITS
