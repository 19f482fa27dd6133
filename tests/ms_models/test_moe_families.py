"""Mixtral and Qwen3-MoE against transformers on CPU in fp32: logits, loss, every gradient, generated tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import transformers
from mindspore import Tensor, ops
from safetensors.numpy import load_file
from tiny_models import Case, generated, gradient_errors, load, logits_error, run
from tiny_moe import CONFIGS, make_case

from mappings.errors import UserError
from mappings.families import load_family
from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.families.causal_lm import CausalLM
from ms_models.families.mixtral import MixtralForCausalLM
from ms_models.families.qwen3_moe import Qwen3MoeForCausalLM
from ms_models.layers.moe import Experts
from ms_models.layers.moe_router import SoftmaxRouter
from ms_models.parallel.mesh import Mesh

# fp32 rounding in another order of summation; measured 8e-7 (logits) and 4e-6 (gradients) on these models.
LOGITS, GRADIENT, LOSS = 1e-5, 1e-4, 1e-5
FAULT = 10  # a planted fault must exceed a tolerance this many times
KINDS: dict[str, type[CausalLM]] = {"mixtral": MixtralForCausalLM, "qwen3_moe": Qwen3MoeForCausalLM}

ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {name: make_case(name, tmp_path_factory.mktemp(name) / "model") for name in CONFIGS}


@pytest.fixture(params=CONFIGS)
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def check(case: Case, *, jit: bool) -> None:
    answer = run(load(case), case, jit=jit)
    assert answer.logits.shape == case.logits.shape
    assert logits_error(answer, case) < LOGITS
    assert answer.count == case.count
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    errors = gradient_errors(answer, case)
    assert len(errors) == len(list(case.reference.parameters()))
    assert max(errors.values()) < GRADIENT, errors


def test_equals_transformers(case: Case) -> None:
    check(case, jit=False)


@pytest.mark.slow  # half a minute of compiling; a layer with experts is compiled in test_moe_layers.py
def test_compiled_equals_transformers(case: Case) -> None:
    check(case, jit=True)


def test_parameters_are_named_and_shaped_as_in_transformers(case: Case) -> None:
    expected = {name: tuple(p.shape) for name, p in case.reference.named_parameters()}
    assert {p.name: p.shape for p in load(case).get_parameters()} == expected


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_generates_the_same_tokens(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    prompt, mask = case.input_ids[::2], case.attention_mask[::2]  # one full row, one padded on the left
    found, expected = generated(case, prompt, mask)
    assert found.shape == (2, prompt.shape[1] + 12)
    assert np.array_equal(found, expected)


def test_experts_are_saved_one_by_one_as_they_were(case: Case, tmp_path: Path) -> None:
    """The files hold a matrix per expert, the model has them stacked."""
    model = load(case)
    model.save_pretrained(tmp_path / "saved")
    before, after = (
        {name: array for file in sorted(folder.glob("*.safetensors")) for name, array in load_file(file).items()}
        for folder in (case.directory, tmp_path / "saved")
    )
    assert set(before) == set(after) and any(".experts.4." in name for name in before)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_each_rank_loads_its_experts_and_its_part_of_them(cases: dict[str, Case]) -> None:
    """Six experts over ep=2, the width 76 of each over tp=2, gate and up each cut."""
    layout, name = ParallelLayout(tp=2, dp=2, ep=2), "model.layers.1.mlp"
    whole = {p.name: p.asnumpy() for p in load(cases["mixtral"]).get_parameters()}
    for rank in range(4):
        tp, ep = rank % 2, rank // 2
        model = AutoModelForCausalLM.from_pretrained(cases["mixtral"].directory, Mesh(layout, rank))
        held = {p.name: p.asnumpy() for p in model.get_parameters()}
        here, rows = slice(3 * ep, 3 * ep + 3), slice(38 * tp, 38 * tp + 38)
        gate, up = np.split(whole[f"{name}.experts.gate_up_proj"][here], 2, 1)
        expected = np.concatenate((gate[:, rows], up[:, rows]), 1)
        assert np.array_equal(held[f"{name}.experts.gate_up_proj"], expected)
        down = whole[f"{name}.experts.down_proj"][here, :, rows]
        assert np.array_equal(held[f"{name}.experts.down_proj"], down)
        assert np.array_equal(held[f"{name}.gate.weight"], whole[f"{name}.gate.weight"])


def test_experts_that_the_ranks_do_not_divide_are_refused(cases: dict[str, Case]) -> None:
    mesh = Mesh(ParallelLayout(dp=4, ep=4))
    with pytest.raises(UserError, match="ep=4 does not divide the 6 experts"):
        AutoModelForCausalLM.from_pretrained(cases["mixtral"].directory, mesh)


# Faults a migration makes, planted one at a time; the comparison above must see each of them.


def forget_to_renormalise(patch: pytest.MonkeyPatch, model: CausalLM) -> None:
    """Or does it where the configuration does not want it."""
    for router in cells(model, SoftmaxRouter):
        router.renormalise = not router.renormalise


def reverse_experts(patch: pytest.MonkeyPatch, model: CausalLM) -> None:
    for experts in cells(model, Experts):
        for parameter in experts.get_parameters():
            parameter.set_data(Tensor(parameter.asnumpy()[::-1].copy()))


def swap_gate_and_up(patch: pytest.MonkeyPatch, model: CausalLM) -> None:
    for experts in cells(model, Experts):
        gate, up = np.split(experts.gate_up_proj.asnumpy(), 2, 1)
        experts.gate_up_proj.set_data(Tensor(np.concatenate((up, gate), 1)))


def drop_a_token(patch: pytest.MonkeyPatch, model: CausalLM) -> None:
    """The first token of a batch finds no room at its experts."""
    right = Experts.compute

    def fault(self: Experts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return right(self, x, ops.concat((weights[:1] * 0, weights[1:]), 0), chosen)

    patch.setattr(Experts, "compute", fault)


def choose_one_fewer(patch: pytest.MonkeyPatch, model: CausalLM) -> None:
    for router in cells(model, SoftmaxRouter):
        router.count -= 1


def cells(model: CausalLM, kind: type[Any]) -> list[Any]:
    found = [cell for _, cell in model.cells_and_names() if isinstance(cell, kind)]
    assert found
    return found


FAULTS = [
    ("mixtral", forget_to_renormalise),
    ("qwen3_moe", forget_to_renormalise),
    ("qwen3_moe", reverse_experts),
    ("mixtral", swap_gate_and_up),
    ("mixtral", drop_a_token),
    ("mixtral", choose_one_fewer),
]


@pytest.mark.parametrize(("name", "plant"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_faults_are_seen(
    name: str,
    plant: Callable[[pytest.MonkeyPatch, CausalLM], None],
    cases: dict[str, Case],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(cases[name])
    plant(monkeypatch, model)
    answer = run(model, cases[name], jit=False)
    assert logits_error(answer, cases[name]) > FAULT * LOGITS
    assert max(gradient_errors(answer, cases[name]).values()) > FAULT * GRADIENT


def test_a_router_without_gradient_is_seen(cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch) -> None:
    right = Experts.construct
    monkeypatch.setattr(
        Experts, "construct", lambda self, x, weights, chosen: right(self, x, ops.stop_gradient(weights), chosen)
    )
    answer = run(load(cases["mixtral"]), cases["mixtral"], jit=False)
    assert logits_error(answer, cases["mixtral"]) < LOGITS  # only the gradients show it
    assert max(gradient_errors(answer, cases["mixtral"]).values()) > FAULT * GRADIENT


# Configurations


def settings(case: Case, **changes: Any) -> Any:
    raw = json.loads((case.directory / "config.json").read_text()) | changes
    return KINDS[raw["model_type"]].read_config(raw, load_family(raw["model_type"]))


def test_defaults_are_those_of_transformers(cases: dict[str, Case]) -> None:
    """What config.json leaves out; a Mixtral differs from other decoders in rotary base and epsilon."""
    sizes = {"vocab_size": 101, "hidden_size": 64, "intermediate_size": 76, "num_hidden_layers": 3}
    sizes["num_attention_heads"] = 8
    kinds: dict[str, Any] = {"mixtral": transformers.MixtralConfig, "qwen3_moe": transformers.Qwen3MoeConfig}
    for name, kind in kinds.items():
        typed = KINDS[name].read_config({"model_type": name, **sizes}, load_family(name))
        expected = kind(**sizes)
        assert typed.experts == expected.num_experts
        assert typed.experts_per_token == expected.num_experts_per_tok
        assert typed.rope.theta == expected.rope_parameters["rope_theta"]
        assert typed.rms_norm_eps == expected.rms_norm_eps
        assert typed.max_position_embeddings == expected.max_position_embeddings
        assert typed.num_key_value_heads == expected.num_key_value_heads
        assert set(typed.windows) <= {None} and expected.sliding_window is None
        assert typed.renormalise == (name == "mixtral" or expected.norm_topk_prob)
        assert list(typed.eos_token_ids) == ([] if expected.eos_token_id is None else [expected.eos_token_id])
        assert all(typed.has_experts) and len(typed.has_experts) == expected.num_hidden_layers


@pytest.mark.parametrize(("step", "dense"), [(1, []), (2, []), (1, [0, 2]), (2, [1]), (4, [])])
def test_layers_with_experts_are_those_of_transformers(step: int, dense: list[int], cases: dict[str, Case]) -> None:
    changes = {"decoder_sparse_step": step, "mlp_only_layers": dense}
    found = settings(cases["qwen3_moe"], **changes).has_experts
    assert found == tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(3))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"output_router_logits": True}, "output_router_logits is true"),
    ("qwen3_moe", {"output_router_logits": True}, "output_router_logits is true"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise 0.1 is not supported"),
    ("mixtral", {"layer_types": ["full_attention"] * 3}, "layer_types is not supported for mixtral"),
    ("mixtral", {"num_experts_per_tok": 7}, "from 1 to the 6 experts, found 7"),
    ("mixtral", {"num_experts_per_tok": True}, "found True"),
    ("qwen3_moe", {"num_experts_per_tok": 0}, "from 1 to the 7 experts, found 0"),
    ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob must be true or false, found 1"),
    ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window is true"),
    ("qwen3_moe", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED, ids=lambda value: str(value))
def test_what_is_not_supported_is_refused(
    name: str, changes: dict[str, Any], message: str, cases: dict[str, Case]
) -> None:
    with pytest.raises(UserError, match=message):
        settings(cases[name], **changes)
