"""AdamW, clipping and the gradient norm against PyTorch."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Parameter, Tensor, ops

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.holdings import Held
from ms_models.parallel import optimizer_sharding
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.optimizer_sharding import OptimizerSharding
from ms_models.train.config import OptimizerConfig
from ms_models.train.gradients import GradientBuffers, clip_factor
from ms_models.train.optimizer import AdamW, label
from ms_models.train.parameter_groups import ParameterGroups, decays

SHAPES = {"a.weight": (7, 5), "a.bias": (7,), "norm.weight": (5,), "b.weight": (3, 7)}
STEPS = 10
CONFIG = OptimizerConfig(weight_decay=0.3, betas=(0.9, 0.95), eps=1e-6, clip_norm=0.7)
LRS = [0.01 * (step + 1) / STEPS for step in range(STEPS)]
# Both round each operation to fp32, in a different order; measured 1.1e-7 over ten steps.
TOLERANCE = 1e-6


def held() -> dict[str, Held]:
    wholes = {name: Arrangement.of(name, shape) for name, shape in SHAPES.items()}
    return {name: Held(name, whole, whole, "ffn", False, (0,), True) for name, whole in wholes.items()}


class Ours:
    def __init__(self, jit: bool) -> None:
        rng = np.random.default_rng(1)
        self.start = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        self.grads = [
            {name: (rng.standard_normal(shape) * size).astype(np.float32) for name, shape in SHAPES.items()}
            for size in np.linspace(0.02, 0.5, STEPS)
        ]
        self.parameters = [Parameter(Tensor(value), name=name) for name, value in self.start.items()]
        compiled: Any = ms.jit if jit else lambda function: function
        groups = ParameterGroups(CONFIG)
        sharding = OptimizerSharding(
            self.parameters, held(), Mesh.single(), [label(p, groups) for p in self.parameters]
        )
        self.buffers = GradientBuffers(sharding)
        self.optimizer = AdamW(sharding, CONFIG, compiled)
        self.add = compiled(self.buffers.adder(self.parameters))

    def step(self, number: int) -> float:
        self.buffers.zero()
        self.add(tuple(Tensor(value) for value in self.grads[number].values()))
        gradients = self.buffers.reduce()
        norm = self.buffers.norm(gradients)
        self.optimizer.update(gradients, LRS[number], clip_factor(norm, CONFIG.clip_norm))
        return norm

    def weights(self) -> np.ndarray:
        return np.concatenate([p.asnumpy().ravel() for p in self.parameters])


def theirs(
    ours: Ours, decay_everything: bool = False, clip: float = CONFIG.clip_norm
) -> tuple[list[float], np.ndarray]:
    parameters = {name: torch.nn.Parameter(torch.from_numpy(value.copy())) for name, value in ours.start.items()}
    decaying = [p for p in parameters.values() if p.ndim >= 2 or decay_everything]
    rest = [p for p in parameters.values() if not (p.ndim >= 2 or decay_everything)]
    groups = [{"params": decaying, "weight_decay": CONFIG.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=1.0, betas=CONFIG.betas, eps=CONFIG.eps)
    norms = []
    for number in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(ours.grads[number][name].copy())
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), clip)))
        for group in optimizer.param_groups:
            group["lr"] = LRS[number]
        optimizer.step()
    return norms, np.concatenate([p.detach().numpy().ravel() for p in parameters.values()])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize("jit", [True, False])
def test_ten_clipped_steps_equal_pytorch(jit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_sharding, "BUCKET_ELEMENTS", 20)
    ours = Ours(jit)
    names = [bucket.names for bucket in ours.buffers.sharding.buckets]
    assert names == [("a.weight",), ("b.weight",), ("a.bias", "norm.weight")]
    norms = [ours.step(number) for number in range(STEPS)]
    expected_norms, expected = theirs(ours)
    # AdamW forgets a factor that is the same at every step, so some steps must be clipped and some not.
    assert min(expected_norms) < CONFIG.clip_norm < max(expected_norms)
    assert norms == pytest.approx(expected_norms, rel=TOLERANCE)
    assert distance(ours.weights(), expected) < TOLERANCE
    # The comparison sees what it is there to see: decayed norms and biases, and another clipping limit.
    assert distance(ours.weights(), theirs(ours, decay_everything=True)[1]) > 100 * TOLERANCE
    assert distance(ours.weights(), theirs(ours, clip=1.4)[1]) > 100 * TOLERANCE


def test_state_survives_a_round_trip_and_step_counts() -> None:
    first, second = Ours(False), Ours(False)
    for number in range(4):
        first.step(number)
    for own, other in zip(second.parameters, first.parameters, strict=True):
        ops.assign(own, Tensor(other.asnumpy()))
    second.optimizer.load_state(first.optimizer.state(), 4, "file")
    first.step(4)
    second.step(4)
    assert np.array_equal(first.weights(), second.weights())


def test_state_that_does_not_fit_is_refused_with_every_name() -> None:
    ours = Ours(False)
    state = ours.optimizer.state()
    state["exp_avg.a.bias"] = np.zeros(3, np.float32)
    state["exp_avg.c"] = state.pop("exp_avg_sq.b.weight")
    with pytest.raises(UserError) as caught:
        ours.optimizer.load_state(state, 1, "optimizer.safetensors")
    for part in (
        "exp_avg_sq.b.weight is missing",
        "exp_avg.c is unexpected",
        "exp_avg.a.bias has shape [3] instead of [7]",
    ):
        assert part in str(caught.value)


def test_only_matrices_decay() -> None:
    assert [decays(shape) for shape in SHAPES.values()] == [True, False, False, True]


@pytest.mark.parametrize("norm", [0.0, 0.3, 0.7, 5.0])
def test_clipping_factor_equals_pytorch(norm: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([norm])
    torch.nn.utils.clip_grad_norm_([parameter], 0.7)
    assert norm * clip_factor(norm, 0.7) == pytest.approx(float(parameter.grad), rel=1e-6)
    assert clip_factor(norm, 0.0) == 1.0
