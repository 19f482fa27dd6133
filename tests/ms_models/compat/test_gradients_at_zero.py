"""Derivatives at exactly 0, where formulas with `abs`, `relu` and `minimum` have the wrong one: what a head whose
weights are zero starts from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mindspore import ops

from ms_models.compat import activation_layers, activations, elementwise, margin_losses, masked, regression_losses

X = np.array([0.0, -0.0, 1e-3, -1e-3, 1.0, -1.0, 30.0, -30.0], np.float32)
LABELS = np.array([0, 1, 1, 0, 0.5, 0.2, 1, 0], np.float32)
MINE, THEIRS = ms.Tensor(LABELS), torch.tensor(LABELS)
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softplus": (activations.softplus, F.softplus),
    "logsigmoid": (activations.logsigmoid, F.logsigmoid),
    "LogSigmoid": (activation_layers.LogSigmoid(), F.logsigmoid),
    "selu": (activations.selu, F.selu),
    "celu": (lambda x: ops.celu(x, 1.3), lambda x: F.celu(x, 1.3)),
    "mish": (activations.mish, F.mish),
    "hardtanh": (activations.hardtanh, F.hardtanh),
    "binary_cross_entropy_with_logits": (
        lambda x: regression_losses.binary_cross_entropy_with_logits(x, MINE, reduction="sum"),
        lambda x: F.binary_cross_entropy_with_logits(x, THEIRS, reduction="sum"),
    ),
    "with pos_weight": (
        lambda x: regression_losses.binary_cross_entropy_with_logits(x, MINE, pos_weight=MINE + 1, reduction="sum"),
        lambda x: F.binary_cross_entropy_with_logits(x, THEIRS, pos_weight=THEIRS + 1, reduction="sum"),
    ),
    "multilabel_soft_margin_loss": (
        lambda x: margin_losses.multilabel_soft_margin_loss(x.reshape((2, 4)), MINE.reshape((2, 4))),
        lambda x: F.multilabel_soft_margin_loss(x.reshape(2, 4), THEIRS.reshape(2, 4)),
    ),
    "logaddexp of equals": (lambda x: elementwise.logaddexp(x, x * x), lambda x: torch.logaddexp(x, x * x)),
    "masked.logaddexp": (lambda x: masked.logaddexp(x, x * x), lambda x: torch.logaddexp(x, x * x)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    mine, theirs = CASES[name]
    x = torch.tensor(X, requires_grad=True)
    expected = theirs(x)
    expected.sum().backward()
    assert x.grad is not None
    # MindSpore's exp is off by 8e-6 on the CPU
    np.testing.assert_allclose(mine(ms.Tensor(X)).asnumpy(), expected.detach().numpy(), rtol=1e-5, atol=2e-6)
    found = ms.grad(lambda x: mine(x).sum())(ms.Tensor(X)).asnumpy()
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_infinities(infinity: float) -> None:
    value, same = ms.Tensor(np.array([infinity], np.float32)), torch.tensor([infinity])
    np.testing.assert_equal(activations.softplus(value).asnumpy(), F.softplus(same).numpy())
    np.testing.assert_equal(activations.logsigmoid(value).asnumpy(), F.logsigmoid(same).numpy())
    for other in (1.0, infinity, -infinity):
        found = elementwise.logaddexp(value, ms.Tensor(np.array([other], np.float32))).asnumpy()
        np.testing.assert_equal(found, torch.logaddexp(same, torch.tensor([other])).numpy())


def test_logsigmoid_is_exact() -> None:
    x = np.linspace(-8, 8, 10001).astype(np.float32)
    exact = -np.logaddexp(0.0, -x.astype(np.float64))
    assert np.abs(activations.logsigmoid(ms.Tensor(x)).asnumpy() - exact).max() < 1e-6  # MindSpore's: 4e-6
