"""LayerNorm and activations against torch in fp64: values and gradients, whichever way they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor
from transformers.activations import ACT2FN

from mappings.errors import UserError
from ms_models.layers.activation import ACTIVATIONS, activation, gelu_tanh, gelu_tanh_fused
from ms_models.layers.layer_norm import LayerNorm

EXACT = 1e-6  # of the norm; fp32 rounds to 6e-8 and the sums are of some hundreds of terms

ms.runtime.launch_blocking()


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("jit", [False, True], ids=["pynative", "jit"])
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_layer_norm_and_its_gradients(mean: float, jit: bool) -> None:
    rng = np.random.default_rng(0)
    width, eps = 46, 1e-3
    x = (rng.standard_normal((3, 7, width)) + mean).astype(np.float32)
    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    weights = rng.standard_normal(x.shape).astype(np.float32)
    exact = [torch.tensor(a.astype(np.float64), requires_grad=True) for a in (x, weight, bias)]
    y = torch.nn.functional.layer_norm(exact[0], (width,), exact[1], exact[2], eps)
    (y * torch.tensor(weights)).sum().backward()

    norm = LayerNorm(width, eps)
    norm.weight.set_data(Tensor(weight))
    norm.bias.set_data(Tensor(bias))

    def weighted(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        y = norm(x)
        return (y * weights).sum(), y

    step: Any = ms.value_and_grad(weighted, 0, [norm.weight, norm.bias], has_aux=True)
    step = ms.jit(step) if jit else step
    (_, found), (of_x, (of_weight, of_bias)) = step(Tensor(x), Tensor(weights))
    assert relative(found.asnumpy(), y.detach().numpy()) < EXACT
    for gradient, value in zip((of_x, of_weight, of_bias), exact, strict=True):
        assert value.grad is not None
        assert relative(gradient.asnumpy(), value.grad.numpy()) < EXACT


def test_layer_norm_of_half_precision_is_computed_in_fp32() -> None:
    x = np.full((1, 4), 300.0, np.float16) + np.array([0, 1, 2, 3], np.float16)  # squares overflow fp16
    found = LayerNorm(4, 1e-5)(Tensor(x))
    assert found.dtype == ms.float16
    expected = torch.nn.functional.layer_norm(torch.tensor(x.astype(np.float64)), (4,)).numpy()
    assert relative(found.asnumpy(), expected) < 1e-3


POINTS = np.concatenate([np.linspace(-12, 12, 2001), [-1e4, -100, 0.0, 100, 1e4]]).astype(np.float32)


def compared(function: Callable[[Tensor], Tensor], reference: Callable[[Any], Any]) -> tuple[float, float]:
    """Largest differences of values and of slopes, over 1 plus what is expected."""
    points = torch.tensor(POINTS.astype(np.float64), requires_grad=True)
    expected = reference(points)
    (slopes,) = torch.autograd.grad(expected.sum(), points)
    found = [function(Tensor(POINTS)).asnumpy(), ms.grad(function)(Tensor(POINTS)).asnumpy()]
    errors = [
        float((np.abs(f - e.detach().numpy()) / (1 + np.abs(e.detach().numpy()))).max())
        for f, e in zip(found, (expected, slopes), strict=True)
    ]
    return errors[0], errors[1]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_slopes(name: str) -> None:
    value, slope = compared(activation("hidden_act", name), ACT2FN[name])
    assert value < 1e-6
    assert slope < 3e-6  # a product of x and of what is left of 1 where the sigmoid is nearly 1


def test_the_fused_kernel_computes_the_same() -> None:
    assert max(compared(gelu_tanh_fused, ACT2FN["gelu_new"])) < 3e-6


def test_the_two_gelus_differ() -> None:
    """What these comparisons would show if a name led to the wrong one."""
    assert compared(gelu_tanh, ACT2FN["gelu"])[0] > 1e-4


@pytest.mark.parametrize("name", ["mish", None, 3])
def test_an_unknown_activation_is_named(name: object) -> None:
    with pytest.raises(UserError, match=rf"config.json: hidden_act {name!r} is not supported \(known: gelu, "):
        activation("hidden_act", name)
