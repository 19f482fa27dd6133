"""Adam's step in one kernel and operation by operation, against torch in fp64."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Parameter, Tensor, ops

from ms_models.train.adam_direction import AdamDirection

STEPS, LR, EPS = 8, 0.01, 1e-6
EXACT = 1e-6  # of the norm: fp32 rounding of a few operations a step


def ours(betas: tuple[float, float], *, fused: bool, jit: bool, numbers: Any = None) -> np.ndarray:
    """Sum of the steps, `[STEPS, 5, 7]`."""
    m, v = (Parameter(Tensor(np.zeros((5, 7), np.float32)), name=name) for name in ("m", "v"))
    direction = AdamDirection(betas, EPS, fused=fused)

    def update(gradient: Tensor, size: Tensor, eps: Tensor) -> Tensor:
        return direction(m, v, gradient, size, eps)

    run: Any = ms.jit(update) if jit else update
    found = []
    for step, gradient in enumerate(gradients(), 1):
        scalars = (numbers or direction.numbers)(LR, step)
        found.append(run(Tensor(gradient), *(Tensor(number, ms.float32) for number in scalars)).asnumpy())
    assert np.abs(v.asnumpy()).min() > 0
    return np.stack(found)


def gradients() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((5, 7)) * size).astype(np.float32) for size in np.linspace(1e-6, 0.3, STEPS)]


def theirs(betas: tuple[float, float]) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.zeros(5, 7, dtype=torch.float64))
    optimizer = torch.optim.Adam([parameter], lr=LR, betas=betas, eps=EPS)
    found = []
    for gradient in gradients():
        before = parameter.detach().clone()
        parameter.grad = torch.tensor(gradient.astype(np.float64))
        optimizer.step()
        found.append((parameter.detach() - before).numpy())
    return np.stack(found)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999)])
@pytest.mark.parametrize(("fused", "jit"), [(True, True), (True, False), (False, True), (False, False)])
def test_steps_equal_torch(betas: tuple[float, float], fused: bool, jit: bool) -> None:
    assert distance(ours(betas, fused=fused, jit=jit), theirs(betas)) < EXACT


def test_the_rounding_of_a_beta_is_seen_and_taken_out() -> None:
    plain = AdamDirection((0.9, 0.999), EPS, fused=False)  # its numbers know nothing of the kernel's rounding
    wrong = ours((0.9, 0.999), fused=True, jit=True, numbers=plain.numbers)
    assert distance(wrong, theirs((0.9, 0.999))) > 3 * EXACT


def test_moments_carry_over() -> None:
    """A step of its own is another one than the step after others."""
    steps = ours((0.9, 0.95), fused=True, jit=True)
    m, v = (Parameter(Tensor(np.zeros((5, 7), np.float32)), name=name) for name in ("m", "v"))
    direction = AdamDirection((0.9, 0.95), EPS)
    assert direction.fused  # by device
    scalars = [Tensor(number, ms.float32) for number in direction.numbers(LR, 1)]
    alone = direction(m, v, Tensor(gradients()[-1]), *scalars).asnumpy()
    assert distance(alone, steps[-1]) > 0.1
    assert not np.array_equal(m.asnumpy(), ops.zeros_like(m).asnumpy())
