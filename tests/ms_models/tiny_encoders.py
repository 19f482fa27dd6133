"""Tiny random encoders of transformers with odd sizes, and what they compute: the reference of the encoder tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import torch
import transformers
from tiny_models import Answer, Case

from ms_models.auto_masked_lm import AutoModelForMaskedLM
from ms_models.families.masked_lm import MaskedLM

# No two sizes that meet in one tensor are equal, so that a transposed or swapped axis cannot go unnoticed.
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "layer_norm_eps": 1e-2,  # large enough to be seen when it is forgotten
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
}
PAD = 3
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    # as published: both heads, token 0 pads
    "bert": transformers.BertConfig(**SIZES, max_position_embeddings=29, type_vocab_size=3),
    "bert-untied": transformers.BertConfig(
        **SIZES, max_position_embeddings=29, pad_token_id=PAD, tie_word_embeddings=False, hidden_act="gelu_new"
    ),
    # hfl/chinese-roberta-wwm-ext says of itself: a BERT, with one kind of segment less in use than it has
    "chinese-roberta": transformers.BertConfig(
        **SIZES, max_position_embeddings=29, architectures=["BertForMaskedLM"], pad_token_id=0, type_vocab_size=2
    ),
    "roberta": transformers.RobertaConfig(
        **SIZES, max_position_embeddings=31, type_vocab_size=1, pad_token_id=PAD, hidden_act="relu"
    ),
    "xlm-roberta": transformers.XLMRobertaConfig(
        **SIZES, max_position_embeddings=31, type_vocab_size=1, pad_token_id=1, tie_word_embeddings=False
    ),
}
PRETRAINING = ("bert", "chinese-roberta")  # saved with pooler and next-sentence head
BATCH, LENGTH = 3, 13


def build(name: str, directory: Path, dtype: torch.dtype = torch.float32) -> transformers.PreTrainedModel:
    """Makes and saves a model in which every parameter, biases and norms too, is off its initial value."""
    torch.manual_seed(0)
    kind = transformers.AutoModelForPreTraining if name in PRETRAINING else transformers.AutoModelForMaskedLM
    model = kind.from_config(CONFIGS[name], attn_implementation="eager", dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(dtype) * 0.1)
    model.save_pretrained(directory, max_shard_size="40KB")
    return model


def segments(name: str) -> np.ndarray | None:
    """Segments of the tokens, where the model has more than one."""
    count = CONFIGS[name].type_vocab_size
    return None if count == 1 else np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) // 5 % count


def prefix(name: str) -> str:
    """First part of the names of a model's body."""
    return "roberta" if "roberta" in CONFIGS[name].model_type else "bert"


def make_case(name: str, directory: Path) -> Case:
    """Saves a model and computes logits, loss and gradients with transformers on a batch with padding."""
    model = build(name, directory)
    pad = CONFIGS[name].pad_token_id
    rng = np.random.default_rng(0)
    input_ids = rng.integers(4, SIZES["vocab_size"], (BATCH, LENGTH))
    attention_mask = np.ones_like(input_ids)
    attention_mask[1, 9:] = 0
    attention_mask[2, :4] = 0
    input_ids[attention_mask == 0] = pad
    input_ids[0, 3] = pad  # one that is looked at
    originals = rng.integers(0, SIZES["vocab_size"], input_ids.shape)
    labels = np.where((rng.random(input_ids.shape) < 0.4) & (attention_mask == 1), originals, -100)
    return answer(name, model, directory, input_ids, attention_mask, labels)


def answer(
    name: str,
    model: transformers.PreTrainedModel,
    directory: Path,
    input_ids: np.ndarray,
    attention_mask: np.ndarray,
    labels: np.ndarray,
) -> Case:
    """What transformers computes on a batch, with dropout if the model is in training."""
    model.zero_grad()
    kinds = segments(name)
    extra = {} if kinds is None else {"token_type_ids": torch.tensor(kinds)}
    output = model(torch.tensor(input_ids).long(), attention_mask=torch.tensor(attention_mask), **extra)
    logits = output.prediction_logits if name in PRETRAINING else output.logits
    targets = torch.tensor(labels).long().reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")
    loss.backward()
    # What the loss does not reach has no gradient: pooler, next-sentence head, the second bias of an untied decoder.
    gradients = {key: p.grad.numpy().copy() for key, p in model.named_parameters() if p.grad is not None}
    return Case(
        directory=directory,
        reference=model,
        input_ids=input_ids.astype(np.int32),
        attention_mask=attention_mask.astype(np.int32),
        labels=labels.astype(np.int32),
        logits=logits.detach().numpy(),
        loss=loss.item(),
        count=int((targets != -100).sum()),
        gradients=gradients,
    )


def load(case: Case) -> MaskedLM:
    """The case's model in MindSpore, as for inference."""
    model = AutoModelForMaskedLM.from_pretrained(case.directory)
    model.set_train(False)
    return model


def run(model: MaskedLM, case: Case, kinds: np.ndarray | None, *, jit: bool) -> Answer:
    """Logits, loss and gradients of the summed loss, in PyNative or compiled."""
    ids, labels, mask = (ms.Tensor(array) for array in (case.input_ids, case.labels, case.attention_mask))
    segments = None if kinds is None else ms.Tensor(kinds, ms.int32)
    parameters = list(model.trainable_params())

    def loss(
        ids: ms.Tensor, labels: ms.Tensor, mask: ms.Tensor, segments: ms.Tensor | None
    ) -> tuple[ms.Tensor, ms.Tensor, ms.Tensor]:
        return (*model.loss(ids, labels, mask, segments), model(ids, mask, segments))

    step = ms.value_and_grad(loss, None, parameters, has_aux=True)
    if jit:
        step = ms.jit(step)
    (total, count, logits), gradients = step(ids, labels, mask, segments)
    by_name = {p.name: g.asnumpy() for p, g in zip(parameters, gradients, strict=True)}
    return Answer(logits.asnumpy(), float(total.asnumpy()), float(count.asnumpy()), by_name)


def gradient_errors(found: Answer, case: Case) -> dict[str, float]:
    """Relative error of every gradient.

    That of a key's bias is zero but for rounding (a number added to all scores of a row changes no softmax), so its
    error is measured against the gradient of the query's.
    """
    assert set(found.gradients) == set(case.gradients)
    errors = {}
    for name, expected in case.gradients.items():
        scale = np.linalg.norm(case.gradients[name.replace("self.key.bias", "self.query.bias")])
        assert scale > 0 and found.gradients[name].shape == expected.shape
        errors[name] = float(np.linalg.norm(found.gradients[name] - expected) / scale)
    return errors
