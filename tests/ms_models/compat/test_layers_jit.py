"""Layers inside `ms.jit` give what they give outside; containers that were changed are copied with their order."""

from __future__ import annotations

import copy
from typing import Any

import mindspore as ms
import numpy as np
import pytest

from ms_models.compat import (
    activation_layers,
    containers,
    embedding_bags,
    image_layers,
    layers,
    multihead_attention,
    padding_layers,
    pooling_layers,
    transformer,
)

RNG = np.random.default_rng(0)
X = ms.Tensor(RNG.standard_normal((2, 3, 4)).astype(np.float32))
IMAGE = ms.Tensor(RNG.standard_normal((2, 2, 5, 4)).astype(np.float32))
IDS = ms.Tensor(RNG.integers(0, 5, (3, 4)))


def edited() -> containers.Sequential:
    model = containers.Sequential(layers.Linear(4, 4), layers.Linear(4, 2))
    model.insert(0, layers.Linear(4, 4))
    model.add_module("last", activation_layers.LogSoftmax(-1))
    return model


CASES: list[tuple[Any, tuple[ms.Tensor, ...]]] = [
    (lambda: multihead_attention.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True), (X, X, X)),
    (lambda: transformer.Transformer(4, 2, 1, 1, 8, 0.0), (X, X)),
    (lambda: embedding_bags.EmbeddingBag(5, 3, mode="max"), (IDS,)),
    (lambda: image_layers.Conv2d(2, 2, 3, padding="same", padding_mode="reflect"), (IMAGE,)),
    (lambda: pooling_layers.MaxPool2d(2), (IMAGE,)),
    (lambda: padding_layers.CircularPad2d(1), (IMAGE,)),
    (edited, (X,)),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_same_inside_jit(number: int) -> None:
    make, inputs = CASES[number]
    cell = make()
    plain = cell(*inputs)
    cell.construct = ms.jit(cell.construct)
    compiled = cell(*inputs)
    if isinstance(plain, tuple):
        plain, compiled = plain[0], compiled[0]
    np.testing.assert_allclose(compiled.asnumpy(), plain.asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_copy_of_a_changed_sequential_calls_its_own_layers() -> None:
    model = edited()
    other = copy.deepcopy(model)
    before = model(X).asnumpy()
    assert list(other.state_dict()) == list(model.state_dict()) and other[0] is not model[0]
    other[0] = layers.Linear(4, 4)
    assert not np.allclose(other(X).asnumpy(), before)
    # Where its arguments lie in memory decides how a kernel adds up: the last bit may differ between two calls.
    np.testing.assert_allclose(model(X).asnumpy(), before, rtol=1e-6)
