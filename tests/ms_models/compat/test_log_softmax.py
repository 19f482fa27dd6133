"""`log_softmax` and `cross_entropy` of few classes against float64: what 5e-6 spoils where gradients cancel."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat.activations import EXACT_CLASSES, log_softmax
from ms_models.compat.losses import cross_entropy

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(("shape", "dim"), [((64, 3), -1), ((4, 50, 7), 1), ((8, EXACT_CLASSES), 1)])
def test_values_and_gradients_are_exact(shape: tuple[int, ...], dim: int) -> None:
    x, w = (np.asarray(RNG.standard_normal(shape) * 3, np.float32) for _ in range(2))
    exact = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    values = torch.log_softmax(exact, dim)
    (values * torch.tensor(w)).sum().backward()
    assert exact.grad is not None
    for function in (log_softmax, ms.jit(log_softmax)):
        mine = function(ms.Tensor(x), dim).asnumpy()
        # MindSpore's own is off by 4e-6 and 3e-6
        assert np.abs(mine - values.detach().numpy()).max() < 3e-6
        found = ms.grad(lambda t, function=function: (function(t, dim) * ms.Tensor(w)).sum())(ms.Tensor(x)).asnumpy()
        assert np.abs(found - exact.grad.numpy()).max() < 1e-6 * np.abs(exact.grad.numpy()).max()


@pytest.mark.parametrize("classes", [2, EXACT_CLASSES, EXACT_CLASSES + 1])
def test_gradients_of_the_loss(classes: int) -> None:
    x, labels = np.asarray(RNG.standard_normal((32, classes)), np.float32), RNG.integers(0, classes, 32)
    exact = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(exact, torch.tensor(labels)).backward()
    assert exact.grad is not None
    found = ms.grad(cross_entropy)(ms.Tensor(x), ms.Tensor(labels)).asnumpy()
    bound = 1e-6 if classes <= EXACT_CLASSES else 1e-5  # MindSpore's own kernel beyond
    assert np.abs(found - exact.grad.numpy()).max() < bound * np.abs(exact.grad.numpy()).max()


def test_classes_that_cannot_be_have_the_logarithm_of_zero() -> None:
    x = np.array([[1.0, -np.inf, 2.0], [-np.inf, -np.inf, -np.inf], [3e38, 1.0, 2.0]], np.float32)
    theirs = torch.tensor(x, requires_grad=True)
    values = torch.log_softmax(theirs, -1)
    values[:, 2].sum().backward()
    assert theirs.grad is not None
    np.testing.assert_allclose(log_softmax(ms.Tensor(x), -1).asnumpy(), values.detach().numpy(), rtol=3e-6)
    found = ms.grad(lambda t: log_softmax(t, -1)[:, 2].sum())(ms.Tensor(x)).asnumpy()
    np.testing.assert_allclose(found, theirs.grad.numpy(), rtol=1e-5)
