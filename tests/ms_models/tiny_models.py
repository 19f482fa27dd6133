"""Tiny random models of transformers with odd sizes, and what they compute: the reference of the family tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import torch
import transformers

import ms_models
from ms_models.families.causal_lm import CausalLM

# No two sizes that meet in one tensor are equal, so that a transposed or swapped axis cannot go unnoticed.
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-3,  # large enough to be seen when it is forgotten
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,  # puts frequencies of a 10-wide head in all three bands
}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False, head_dim=10, pad_token_id=5),
    "llama3-tied-biases": transformers.LlamaConfig(
        **SIZES, tie_word_embeddings=True, head_dim=10, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE
    ),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen2-tied": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True, pad_token_id=5),
    "qwen3-biases": transformers.Qwen3Config(**SIZES, head_dim=10, attention_bias=True),
    # shorter than the batch and than what is generated, so that it is felt in all of them
    "mistral": transformers.MistralConfig(**SIZES, head_dim=10, sliding_window=4),
    # caps within reach of the scores and logits; windows in layers 0 and 2
    "gemma2": transformers.Gemma2Config(
        **SIZES,
        head_dim=10,
        sliding_window=4,
        query_pre_attn_scalar=7,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
}
BATCH, LENGTH = 3, 13


@dataclass(frozen=True)
class Case:
    """A saved model, a padded batch, and transformers' answers."""

    directory: Path
    reference: transformers.PreTrainedModel
    input_ids: np.ndarray
    attention_mask: np.ndarray
    labels: np.ndarray
    logits: np.ndarray
    loss: float
    """Sum over valid positions."""
    count: int
    gradients: dict[str, np.ndarray]
    """Of the summed loss."""


def build(
    model: str | transformers.PretrainedConfig, directory: Path, dtype: torch.dtype = torch.float32
) -> transformers.PreTrainedModel:
    """Makes and saves a model in which every parameter, biases and norms too, is off its initial value.

    Args:
        model: a name in `CONFIGS`, or a configuration.
        directory: where to save it.
        dtype: of the parameters.
    """
    torch.manual_seed(0)
    config = CONFIGS[model] if isinstance(model, str) else model
    # eager: its additive mask also defines the rows of left padding, which see nothing
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(dtype) * 0.1)
    model.save_pretrained(directory, max_shard_size="40KB")
    return model


def make_case(name: str, directory: Path) -> Case:
    """Saves a model and computes logits, loss and gradients with transformers on a batch padded on both sides."""
    return answers_of(build(name, directory), directory)


def answers_of(model: transformers.PreTrainedModel, directory: Path) -> Case:
    """The case of a model that is saved in `directory`."""
    rng = np.random.default_rng(0)
    input_ids = rng.integers(0, model.config.vocab_size, (BATCH, LENGTH))
    input_ids[0, 1] = input_ids[1, 2] = 5  # where it is the pad token, these lookups have no gradient
    attention_mask = np.ones_like(input_ids)
    attention_mask[1, 9:] = 0
    attention_mask[2, :4] = 0
    labels = np.where(attention_mask == 1, input_ids, -100)
    labels[0, 5] = -100
    logits = model(torch.tensor(input_ids), attention_mask=torch.tensor(attention_mask)).logits
    targets = torch.tensor(labels)[:, 1:].reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")
    loss.backward()
    gradients = {key: parameter.grad.numpy() for key, parameter in model.named_parameters()}
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


@dataclass(frozen=True)
class Answer:
    """What MindSpore computed for a case."""

    logits: np.ndarray
    loss: float
    count: float
    gradients: dict[str, np.ndarray]


def run(model: CausalLM, case: Case, *, jit: bool) -> Answer:
    """Logits, loss and gradients of the summed loss, in PyNative or compiled."""
    ids, labels, mask = (ms.Tensor(array) for array in (case.input_ids, case.labels, case.attention_mask))
    parameters = list(model.trainable_params())

    def loss(ids: ms.Tensor, labels: ms.Tensor, mask: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        return model.loss(ids, labels, mask)

    step = ms.value_and_grad(loss, None, parameters, has_aux=True)
    forward = model
    if jit:
        step, forward = ms.jit(step), ms.jit(model.construct)
    logits = forward(ids, mask).asnumpy()
    (total, count), gradients = step(ids, labels, mask)
    by_name = {p.name: g.asnumpy() for p, g in zip(parameters, gradients, strict=True)}
    return Answer(logits, float(total.asnumpy()), float(count.asnumpy()), by_name)


def load(case: Case) -> CausalLM:
    """The case's model in MindSpore."""
    return ms_models.AutoModelForCausalLM.from_pretrained(case.directory)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of what is expected, which must not be zero."""
    assert found.shape == expected.shape
    norm = np.linalg.norm(expected.astype(np.float64))
    assert norm > 0 and np.isfinite(norm)
    return float(np.linalg.norm(found.astype(np.float64) - expected) / norm)


def logits_error(answer: Answer, case: Case) -> float:
    """Relative error of the logits at tokens; at padding they mean nothing."""
    tokens = case.attention_mask == 1
    return relative(answer.logits[tokens], case.logits[tokens])


def gradient_errors(answer: Answer, case: Case) -> dict[str, float]:
    """Relative error of every parameter's gradient."""
    assert set(answer.gradients) == set(case.gradients)
    return {name: relative(answer.gradients[name], case.gradients[name]) for name in case.gradients}


def generated(case: Case, prompt: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What our model and transformers' continue a prompt with, greedily, 12 tokens without an end."""
    with torch.no_grad():
        expected = case.reference.generate(
            torch.tensor(prompt, dtype=torch.long),
            attention_mask=torch.tensor(mask, dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        ).numpy()
    model = load(case)
    model.config = replace(model.config, eos_token_ids=())
    return model.generate(ms.Tensor(prompt), 12, ms.Tensor(mask)).asnumpy(), expected
