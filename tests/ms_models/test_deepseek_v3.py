"""DeepSeek-V3 against transformers on CPU in fp32: logits, loss, every gradient, generated tokens, further tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from safetensors.torch import load_file
from tiny_deepseek import CONFIGS, WEIGHT, FurtherCase, make_case, make_further_case
from tiny_models import Case, generated, gradient_errors, load, logits_error, relative, run

import ms_models
from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.holdings import Holdings
from mappings.layout import ParallelLayout
from ms_models.families.causal_lm import CausalLM
from ms_models.families.deepseek_v3 import DeepseekV3ForCausalLM, further, router
from ms_models.families.deepseek_v3.router import DeepseekV3Router
from ms_models.layers.mla import LatentAttention

# fp32 rounding in another order of summation; measured 9e-7 (logits) and 2e-6 (gradients) on these models.
LOGITS, GRADIENT, LOSS = 1e-5, 1e-4, 1e-5
FAULT = 10  # a planted fault must exceed a tolerance this many times
FULL, PLAIN = CONFIGS
FURTHER_LAYERS = ("model.layers.2.", "model.layers.3.")  # of the full model

ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> FurtherCase:
    """Everything that can be switched on, further-token layers too."""
    return make_further_case(CONFIGS[FULL], tmp_path_factory.mktemp("deep") / "model")


@pytest.fixture(scope="module")
def case(deep: FurtherCase) -> Case:
    return deep.case


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Everything that can be switched off; no further-token layers, although config.json names one."""
    return make_case(CONFIGS[PLAIN], tmp_path_factory.mktemp("plain") / "model")


def loaded(case: Case) -> CausalLM:
    """The case's model, with the weight of further tokens that the case was made with."""
    model = load(case)
    model.further_weight = WEIGHT
    return model


def check(case: Case, jit: bool) -> None:
    answer = run(loaded(case), case, jit=jit)
    assert answer.logits.shape == case.logits.shape
    assert logits_error(answer, case) < LOGITS
    assert answer.count == case.count
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    errors = gradient_errors(answer, case)
    loss = abs(answer.loss / case.loss - 1)
    print(f"logits {logits_error(answer, case):.1e}, gradient {max(errors.values()):.1e}, loss {loss:.1e}")
    assert max(errors.values()) < GRADIENT, errors


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pynative", "jit"])
def test_equals_transformers(case: Case, jit: bool) -> None:
    assert len([name for name in case.gradients if name.startswith(FURTHER_LAYERS)]) == 2 * 22
    check(case, jit)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pynative", "jit"])
def test_equals_transformers_with_everything_switched_off(plain: Case, jit: bool) -> None:
    check(plain, jit)


@pytest.mark.parametrize("name", ["case", "plain"])
def test_parameters_are_named_and_shaped_as_in_transformers(name: str, request: pytest.FixtureRequest) -> None:
    case = request.getfixturevalue(name)
    corrections = {key: b for key, b in case.reference.named_buffers() if key.endswith("e_score_correction_bias")}
    expected = {key: tuple(p.shape) for key, p in (*case.reference.named_parameters(), *corrections.items())}
    model = load(case)
    found = {p.name: p.shape for p in model.get_parameters()}
    assert corrections
    further_layers = {key for key in found if key not in expected}
    assert {key: shape for key, shape in found.items() if key in expected} == expected
    # Built only where the checkpoint has them.
    assert len(further_layers) == (2 * 23 if name == "case" else 0)
    assert all(key.startswith(FURTHER_LAYERS) for key in further_layers)
    assert {p.name for p in model.get_parameters()} - {p.name for p in model.trainable_params()} == {
        key for key in found if key.endswith("e_score_correction_bias")
    }


@pytest.mark.parametrize("name", ["case", "plain"])
def test_generates_the_same_tokens(name: str, request: pytest.FixtureRequest) -> None:
    case = request.getfixturevalue(name)
    prompt, mask = case.input_ids[::2], case.attention_mask[::2]  # one full row, one padded on the left
    found, expected = generated(case, prompt, mask)
    assert np.array_equal(found, expected)


def test_saves_what_it_loaded(case: Case, tmp_path: Path) -> None:
    load(case).save_pretrained(tmp_path / "saved")
    saved, stored = (load_file(folder / "model.safetensors") for folder in (tmp_path / "saved", case.directory))
    assert set(saved) == set(stored)
    assert [name for name in stored if saved[name].numpy().tobytes() != stored[name].numpy().tobytes()] == []
    assert (tmp_path / "saved" / "config.json").read_bytes() == (case.directory / "config.json").read_bytes()


def test_kimi_k2_is_the_same_model_by_another_name(plain: Case, tmp_path: Path) -> None:
    shutil.copytree(plain.directory, tmp_path / "kimi")
    config = json.loads((plain.directory / "config.json").read_text())
    (tmp_path / "kimi" / "config.json").write_text(json.dumps({**config, "model_type": "kimi_k2"}))
    model = ms_models.AutoModelForCausalLM.from_pretrained(tmp_path / "kimi")
    assert isinstance(model, DeepseekV3ForCausalLM)
    found = model(ms.Tensor(plain.input_ids), ms.Tensor(plain.attention_mask)).asnumpy()
    tokens = plain.attention_mask == 1
    assert relative(found[tokens], plain.logits[tokens]) < LOGITS


# Further tokens


def test_further_tokens_count_by_their_weight(deep: FurtherCase) -> None:
    case = deep.case
    inputs = [ms.Tensor(a) for a in (case.input_ids, case.labels, case.attention_mask)]
    model = load(case)
    assert model.further_weight == 0.1
    model.further_weight = 0.0
    assert float(model.loss(*inputs)[0].asnumpy()) == pytest.approx(deep.next_loss, rel=LOSS)
    model.further_weight = 2 * WEIGHT
    doubled = deep.next_loss + 2 * (case.loss - deep.next_loss)
    assert float(model.loss(*inputs)[0].asnumpy()) == pytest.approx(doubled, rel=LOSS)


def hidden_state_first(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    right = further.FurtherTokenLayer.construct

    def swapped(self: Any, x: Any, *rest: Any) -> Any:
        return right(self, ops.concat(ops.split(x, x.shape[-1] // 2, -1)[::-1], -1), *rest)

    patch.setattr(further.FurtherTokenLayer, "construct", swapped)


def one_token_too_near(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    right = further.ahead
    patch.setattr(further, "ahead", lambda tokens, steps, filler=-100: right(tokens, steps - 1, filler))


def head_without_norm(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    for layer in list(model.body.layers)[-2:]:
        layer.shared_head.norm = nn.Identity()


FURTHER_FAULTS = [hidden_state_first, one_token_too_near, head_without_norm]


@pytest.mark.parametrize("plant", FURTHER_FAULTS, ids=lambda plant: plant.__name__)
def test_wrong_further_tokens_are_seen(
    case: Case, monkeypatch: pytest.MonkeyPatch, plant: Callable[[CausalLM, pytest.MonkeyPatch], None]
) -> None:
    model = loaded(case)
    inputs = [ms.Tensor(a) for a in (case.input_ids, case.labels, case.attention_mask)]
    plant(model, monkeypatch)
    assert float(model.loss(*inputs)[0].asnumpy()) != pytest.approx(case.loss, rel=FAULT * LOSS)


# Faults a migration makes, planted one at a time; the comparison with transformers must see each of them.


def routers(model: CausalLM) -> list[DeepseekV3Router]:
    return [cell for _, cell in model.cells_and_names() if isinstance(cell, DeepseekV3Router)]


def attentions(model: CausalLM) -> list[LatentAttention]:
    return [cell for _, cell in model.cells_and_names() if isinstance(cell, LatentAttention)]


def correction_in_the_weights(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    (bias,) = {tuple(cell.e_score_correction_bias.asnumpy()) for cell in routers(model)[:1]}
    right = router.pick
    patch.setattr(router, "pick", lambda scores, chosen: right(scores + ms.Tensor(bias, ms.float32), chosen))


def correction_forgotten(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    for cell in routers(model):
        cell.e_score_correction_bias.set_data(ops.zeros_like(cell.e_score_correction_bias))


def set_router(model: CausalLM, **settings: Any) -> None:
    for cell in routers(model):
        cell.config = replace(cell.config, **settings)


def no_group_limit(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    set_router(model, groups=1, chosen_groups=1)


def one_group_too_many(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    set_router(model, chosen_groups=3)


def groups_judged_by_their_best_expert(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(router, "BEST", 1)


def scaling_forgotten(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    set_router(model, scale=1.0)


def weights_not_normalised(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    set_router(model, normalized=False)


def halves_rotated(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    for cell in attentions(model):
        cell.config = replace(cell.config, interleaved=False)


def mscale_of_scores_forgotten(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    for cell in attentions(model):
        cell.core.scale_ = cell.config.key**-0.5


def mscale_of_rotation_forgotten(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    rotary: Any = model.body.rotary
    assert rotary.factor != 1.0
    rotary.factor = 1.0


def model_epsilon_in_latent_norms(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    for cell in attentions(model):
        cell.kv_a_layernorm.eps = model.config.rms_norm_eps


def shared_experts_forgotten(model: CausalLM, patch: pytest.MonkeyPatch) -> None:
    model.body.layers[1].mlp.shared_experts = None


FAULTS = [
    correction_in_the_weights,
    correction_forgotten,
    no_group_limit,
    one_group_too_many,
    groups_judged_by_their_best_expert,
    scaling_forgotten,
    weights_not_normalised,
    halves_rotated,
    mscale_of_scores_forgotten,
    mscale_of_rotation_forgotten,
    model_epsilon_in_latent_norms,
    shared_experts_forgotten,
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_faults_are_seen(
    case: Case, monkeypatch: pytest.MonkeyPatch, plant: Callable[[CausalLM, pytest.MonkeyPatch], None]
) -> None:
    model = loaded(case)
    plant(model, monkeypatch)
    found = model(ms.Tensor(case.input_ids), ms.Tensor(case.attention_mask)).asnumpy()
    tokens = case.attention_mask == 1
    assert relative(found[tokens], case.logits[tokens]) > FAULT * LOGITS


# Settings


def config(**changes: Any) -> dict[str, Any]:
    return {**CONFIGS[FULL].to_dict(), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported, only 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported, only 'noaux_tc'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported, only 1"),
        ({"output_router_logits": True}, "output_router_logits is not supported"),
        ({"rope_interleave": "yes"}, "rope_interleave must be true or false, found 'yes'"),
        ({"norm_topk_prob": None}, "norm_topk_prob must be true or false, found None"),
        ({"n_group": None}, "n_group must be a positive whole number, found None"),
        ({"n_group": 5}, "n_group=5 must divide n_routed_experts=12 into groups of at least 2"),
        ({"n_group": 12}, "n_group=12 must divide n_routed_experts=12 into groups of at least 2"),
        ({"topk_group": 5}, "topk_group=5 exceeds n_group=4"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok=7 exceeds the 6 experts of topk_group=2 groups"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor must be a positive number, found 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported here"),
        ({"qk_rope_head_dim": 5}, "head_dim must be even for rotary positions, found 5"),
        ({"attention_dropout": 0.1}, "attention_dropout is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized weights are not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported, only 'silu'"),
    ],
)
def test_settings_that_are_not_supported_are_refused(changes: dict[str, Any], message: str) -> None:
    raw = config(**changes)
    with pytest.raises(UserError, match=message):
        DeepseekV3ForCausalLM.read_config(raw, family_for_config(raw))


def test_fields_that_are_left_out_are_transformers_defaults() -> None:
    left_out = ("n_group", "topk_group", "num_experts_per_tok", "routed_scaling_factor", "norm_topk_prob")
    raw = config(n_routed_experts=256)
    for field in (*left_out, "rope_interleave", "eos_token_id", "num_key_value_heads", "rope_parameters"):
        del raw[field]
    found = DeepseekV3ForCausalLM.read_config(raw, family_for_config(raw))
    assert found.router == router.RouterConfig(256, 8, 8, 4, True, 2.5)
    assert found.attention.interleaved and found.eos_token_ids == (1,)
    assert found.rope is not None and found.rope.theta == 10000.0
    assert found.attention.scale == found.attention.key**-0.5


PUBLISHED = {
    "type": "yarn",
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}


def test_published_rope_settings_are_read() -> None:
    raw = config(rope_scaling=PUBLISHED)
    del raw["rope_parameters"]
    found = DeepseekV3ForCausalLM.read_config(raw, family_for_config(raw))
    assert found.rope is not None and found.rope.kind == "yarn" and found.rope.scaling.attention_factor == 1.0
    assert found.attention.scale == pytest.approx((5 + 6) ** -0.5 * (0.1 * np.log(40) + 1) ** 2)


def test_further_tokens_are_embedded_on_the_last_pipeline_stage_and_share_its_head() -> None:
    raw = config(num_hidden_layers=3)
    layout, family = ParallelLayout(pp=2), family_for_config(raw)
    for rank, has_head in ((0, False), (1, True)):
        held = Holdings(family, raw, layout, rank, "hf_fused", frozenset({further.GROUP})).tensors
        assert [name for name, one in held.items() if one.is_at_both_ends] == ["model.embed_tokens.weight"]
        assert ("lm_head.weight" in held) == ("model.layers.3.eh_proj.weight" in held) == has_head
