"""Layers with a backward pass of their own against torch in fp64."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor

from ms_models.layers.norm import OffsetRMSNorm, RMSNorm
from ms_models.layers.softmax import ON_CPU, RowSoftmax, softmax

EXACT = 1e-6  # of the norm; fp32 rounds to 6e-8 and the sums are of some tens of terms

ms.runtime.launch_blocking()


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def exact(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array.astype(np.float64), requires_grad=True)


@pytest.mark.parametrize("jit", [False, True], ids=["pynative", "jit"])
@pytest.mark.parametrize(("kind", "offset"), [(RMSNorm, 0.0), (OffsetRMSNorm, 1.0)])
@pytest.mark.parametrize("shape", [(3, 7, 46), (2, 3, 4, 10)], ids=["tokens", "heads"])
def test_root_mean_square_norm(kind: type[RMSNorm], offset: float, shape: tuple[int, ...], jit: bool) -> None:
    x, weight, upper, eps = values(*shape), values(shape[-1]), values(*shape[::-1]).reshape(shape), 1e-2
    exact_x, exact_weight = exact(x), exact(weight)
    scale = (exact_x.square().mean(-1, keepdim=True) + eps).rsqrt()
    y = (exact_weight + offset) * exact_x * scale
    (y * torch.tensor(upper)).sum().backward()

    norm = kind(shape[-1], eps)
    norm.weight.set_data(Tensor(weight))
    assert norm.rows is not None  # the backward pass that is tested

    def weighted(x: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        y = norm(x)
        return (y * upper).sum(), y

    step: Any = ms.value_and_grad(weighted, 0, [norm.weight], has_aux=True)
    (_, found), (of_x, (of_weight,)) = (ms.jit(step) if jit else step)(Tensor(x), Tensor(upper))
    assert exact_x.grad is not None and exact_weight.grad is not None
    assert relative(found.asnumpy(), y.detach().numpy()) < EXACT
    assert relative(of_x.asnumpy(), exact_x.grad.numpy()) < EXACT
    assert relative(of_weight.asnumpy(), exact_weight.grad.numpy()) < EXACT


@pytest.mark.parametrize("jit", [False, True], ids=["pynative", "jit"])
@pytest.mark.parametrize("shape", [(5, 9), (2, 3, 4, 7)])
def test_softmax(shape: tuple[int, ...], jit: bool) -> None:
    x, upper = values(*shape) * 3, values(*shape[::-1]).reshape(shape)
    x[0, ..., 2] = np.finfo(np.float32).min  # a place that a mask has closed
    exact_x = exact(x)
    y = exact_x.softmax(-1)
    (y * torch.tensor(upper)).sum().backward()

    def weighted(x: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        y = softmax(x)
        return (y * upper).sum(), y

    step: Any = ms.value_and_grad(weighted, 0, has_aux=True)
    (_, found), of_x = (ms.jit(step) if jit else step)(Tensor(x), Tensor(upper))
    assert ON_CPU and exact_x.grad is not None
    assert relative(found.asnumpy(), y.detach().numpy()) < EXACT
    # MindSpore's softmax is off by 6e-7 itself, and the gradient is a difference of its products.
    assert relative(of_x.asnumpy(), exact_x.grad.numpy()) < 3 * EXACT


def test_a_gradient_without_its_row_sum_would_be_seen() -> None:
    x, upper = Tensor(values(5, 9)), Tensor(values(9, 5).reshape(5, 9))
    y = RowSoftmax()(x)
    (right,) = RowSoftmax().bprop(x, y, upper)
    assert relative((y * upper).asnumpy(), right.asnumpy()) > 1000 * EXACT
