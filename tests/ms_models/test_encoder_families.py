"""Encoders against transformers on CPU in fp32: logits, loss, every gradient, with and without dropout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import reference_dropout
import torch
from mindspore import nn, ops
from tiny_encoders import CONFIGS, answer, build, gradient_errors, load, make_case, run, segments
from tiny_models import Case, logits_error, relative

from ms_models.auto_masked_lm import AutoModelForMaskedLM
from ms_models.families.bert import model as bert_model
from ms_models.families.masked_lm import MaskedLM
from ms_models.layers.layer_norm import LayerNorm
from ms_models.parallel.mesh import Mesh
from ms_models.train.config import OptimizerConfig
from ms_models.train.parameter_groups import decays
from ms_models.train.step import Trainer

# fp32 rounding in another order of summation; measured 5e-7 (logits) and 2e-6 (gradients) on these models.
LOGITS, GRADIENT, LOSS = 1e-5, 1e-4, 1e-5
FAULT = 10  # a planted fault must exceed a tolerance this many times

ms.runtime.launch_blocking()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {name: make_case(name, tmp_path_factory.mktemp(name) / "model") for name in CONFIGS}


def check(name: str, model: MaskedLM, case: Case, *, jit: bool) -> None:
    found = run(model, case, segments(name), jit=jit)
    assert found.logits.shape == case.logits.shape
    assert logits_error(found, case) < LOGITS
    assert found.count == case.count > 0
    assert found.loss == pytest.approx(case.loss, rel=LOSS)
    errors = gradient_errors(found, case)
    assert max(errors.values()) < GRADIENT, errors


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(name: str, cases: dict[str, Case]) -> None:
    check(name, load(cases[name]), cases[name], jit=False)


@pytest.mark.parametrize(
    "name", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "bert")]
)
def test_equals_transformers_when_compiled(name: str, cases: dict[str, Case]) -> None:
    check(name, load(cases[name]), cases[name], jit=True)


@pytest.mark.parametrize(("name", "jit"), [("bert", False), ("roberta", True)])
def test_drops_what_it_says_in_training(
    name: str, jit: bool, cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers drops what a second implementation of the rule says: the same logits, loss and gradients."""
    case = cases[name]
    reference = build(name, tmp_path / "model").train()
    rates = reference_dropout.patch(monkeypatch, case.input_ids)
    expected = answer(name, reference, case.directory, case.input_ids, case.attention_mask, case.labels)
    assert rates == [0.2, *[0.3, 0.2, 0.2] * CONFIGS[name].num_hidden_layers]
    assert relative(expected.logits, case.logits) > 0.1  # much is dropped
    model = load(case)
    model.set_train(True)
    check(name, model, expected, jit=jit)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_positions_and_masks_that_are_given_are_used(name: str, cases: dict[str, Case]) -> None:
    case, model = cases[name], load(cases[name])
    positions = np.cumsum(1 + case.input_ids % 2, axis=1)
    ids, mask, at = (torch.tensor(a).long() for a in (case.input_ids, case.attention_mask, positions))
    with torch.no_grad():
        expected = case.reference(ids, attention_mask=mask, position_ids=at)[0].numpy()
    given = ms.Tensor(case.input_ids)
    found = model(given, ms.Tensor(case.attention_mask), None, ms.Tensor(positions.astype(np.int32))).asnumpy()
    tokens = case.attention_mask == 1
    assert relative(found[tokens], expected[tokens]) < LOGITS
    assert relative(case.logits[tokens], expected[tokens]) > FAULT * LOGITS
    ones = ms.Tensor(np.ones_like(case.input_ids))
    assert relative(model(given).asnumpy(), model(given, ones).asnumpy()) < LOGITS
    assert np.array_equal(model(given).asnumpy(), model(given, None, ones * 0).asnumpy())


def test_nothing_outside_of_a_table_passes(cases: dict[str, Case]) -> None:
    case, model = cases["bert"], load(cases["bert"])
    ids, labels = ms.Tensor(case.input_ids), ms.Tensor(case.labels)
    zeros = case.input_ids * 0
    wrong = zeros.copy()
    wrong[1, 2] = 3
    assert np.isnan(model.loss(ids, labels, None, ms.Tensor(wrong))[0].asnumpy())
    far = zeros.copy()
    far[0, 1] = 29
    assert np.isnan(model(ids, None, None, ms.Tensor(far)).asnumpy()).any()
    for value in (101, -1):
        label = case.labels.copy()
        label[0, 0] = value
        assert np.isnan(model.loss(ids, ms.Tensor(label))[0].asnumpy())
    assert np.isfinite(model.loss(ids, labels)[0].asnumpy())


@pytest.mark.parametrize(("name", "limit"), [("bert", 29), ("roberta", 27)])
def test_sequences_longer_than_the_table_are_refused(name: str, limit: int, cases: dict[str, Case]) -> None:
    model = load(cases[name])
    ids = np.full((1, limit), 7, np.int32)
    assert np.isfinite(model(ms.Tensor(ids)).asnumpy()).all()
    longer = ms.Tensor(np.full((1, limit + 1), 7, np.int32))
    for forward in (model, ms.jit(model.construct))[: 1 + (name == "bert")]:
        with pytest.raises(ValueError, match="input_ids are longer than max_position_embeddings"):
            forward(longer)


def test_the_trainer_steps_as_pytorch_does(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps with dropout; pooler and next-sentence head stay as they are."""
    case = cases["chinese-roberta"]
    labels = case.labels.copy()
    labels[:, 0] = -100  # the trainer counts as for decoders, without the first position
    assert MaskedLM.count_valid(labels) == int((labels != -100).sum()) > 0
    reference = build("chinese-roberta", tmp_path / "model").train()
    start = {key: p.detach().numpy().copy() for key, p in reference.named_parameters()}
    settings = OptimizerConfig(weight_decay=0.1, clip_norm=1.0)
    groups = [
        {"params": [p for p in reference.parameters() if decays(p.shape)], "weight_decay": 0.1},
        {"params": [p for p in reference.parameters() if not decays(p.shape)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=settings.betas, eps=settings.eps)
    model = AutoModelForMaskedLM.from_pretrained(case.directory)
    model.set_train(True)
    trainer = Trainer(model, Mesh.single(), settings, jit=False)
    batch = {"input_ids": case.input_ids, "attention_mask": case.attention_mask, "labels": labels}
    for _ in range(2):
        with monkeypatch.context() as patch:
            reference_dropout.patch(patch, case.input_ids)
            logits = reference(
                torch.tensor(case.input_ids).long(), attention_mask=torch.tensor(case.attention_mask)
            ).prediction_logits
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).long().flatten())
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(reference.parameters(), settings.clip_norm))
        optimizer.step()
        result = trainer.step([batch], 1e-3)
        assert result.is_finite and result.tokens == MaskedLM.count_valid(labels)
        assert result.loss == pytest.approx(loss.item(), rel=LOSS)
        assert result.grad_norm == pytest.approx(norm, rel=LOSS)
    found = {p.name: p.asnumpy() for p in model.get_parameters()}
    for key, parameter in reference.named_parameters():
        if key not in case.gradients:
            assert np.array_equal(found[key], start[key]), key
        elif "key.bias" not in key:  # its gradient is rounding noise, of which AdamW makes full steps
            moved = parameter.detach().numpy() - start[key]
            # Of the way that was moved: Adam divides by the gradient, so that elements near zero may differ.
            assert relative(found[key] - start[key], moved) < 1e-3, key


# Faults a migration makes, planted one at a time; the comparison above must see each of them.


def positions_from_zero(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    """Counts a RoBERTa's positions as BERT does."""
    patch.setattr(model.roberta.embeddings, "count", lambda ids: ops.arange(ids.shape[1]).expand_dims(0))


def positions_of_padding_counted(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    """Begins behind the padding id, but counts padding too."""
    pad = model.config.pad_token_id
    patch.setattr(model.roberta.embeddings, "count", lambda ids: ops.arange(ids.shape[1]).expand_dims(0) + pad + 1)


def norm_before_the_sum(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    def construct(self: Any, y: Any, x_BSM: Any, seeds: Any) -> Any:
        return self.LayerNorm(self.dense(y)) + x_BSM

    patch.setattr(bert_model.BertOutput, "construct", construct)


def decoder_bias_dropped(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    zero(model, "cls.predictions.bias" if "bert" in model._cells else "lm_head.bias")


def segments_ignored(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    right = model.bert.embeddings.construct
    patch.setattr(model.bert.embeddings, "construct", lambda ids, kinds, at, seeds: right(ids, None, at, seeds))


def mask_ignored(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    patch.setattr(bert_model, "padding_bias", lambda mask: (mask * 0.0).expand_dims(1).expand_dims(1))


def epsilon(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    for _, cell in model.cells_and_names():
        if isinstance(cell, LayerNorm):
            cell.normalize = type(cell.normalize)(1e-12)


def activation_of_the_head(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    """A BERT's head has the activation of the layers, a RoBERTa's has not."""
    if "bert" in model._cells:
        model.cls.predictions.transform.activation = ops.relu
    else:
        patch.setattr("ms_models.families.roberta.model.gelu", model.config.activation)


def head_without_its_norm(patch: pytest.MonkeyPatch, model: MaskedLM) -> None:
    if "bert" in model._cells:
        model.cls.predictions.transform.LayerNorm = nn.Identity()
    else:
        model.lm_head.layer_norm = nn.Identity()


def zero(model: MaskedLM, name: str) -> None:
    parameter = next(p for p in model.get_parameters() if p.name == name)
    parameter.set_data(ops.zeros_like(parameter))


Plant = Callable[[pytest.MonkeyPatch, MaskedLM], None]
BOTH: list[Plant] = [
    norm_before_the_sum,
    decoder_bias_dropped,
    mask_ignored,
    epsilon,
    activation_of_the_head,
]
FAULTS: list[tuple[str, Plant]] = [
    *((name, plant) for name in ("bert", "roberta") for plant in BOTH),
    ("bert", segments_ignored),
    ("roberta", positions_from_zero),
    ("roberta", positions_of_padding_counted),
]


@pytest.mark.parametrize(("name", "plant"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_faults_are_seen(
    name: str, plant: Plant, cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(cases[name])
    plant(monkeypatch, model)
    found = run(model, cases[name], segments(name), jit=False)
    assert logits_error(found, cases[name]) > FAULT * LOGITS
    assert max(gradient_errors(found, cases[name]).values()) > FAULT * GRADIENT


def test_tokens_and_positions_of_padding_that_learn_are_seen(
    cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, model = cases["roberta"], load(cases["roberta"])
    model.roberta.embeddings.word_embeddings.padding_id = None
    monkeypatch.setattr(type(model.roberta.embeddings), "position_rows", bert_model.BertEmbeddings.position_rows)
    errors = gradient_errors(run(model, case, None, jit=False), case)
    wrong = {name for name, error in errors.items() if error > GRADIENT}
    assert wrong == {f"roberta.embeddings.{kind}_embeddings.weight" for kind in ("word", "position")}


def test_labels_that_are_shifted_are_seen(cases: dict[str, Case]) -> None:
    case, model = cases["bert"], load(cases["bert"])
    kinds = ms.Tensor(segments("bert"), ms.int32)
    rolled = np.roll(case.labels, 1, axis=1)
    total, _ = model.loss(ms.Tensor(case.input_ids), ms.Tensor(rolled), ms.Tensor(case.attention_mask), kinds)
    assert float(total.asnumpy()) != pytest.approx(case.loss, rel=FAULT * LOSS)
