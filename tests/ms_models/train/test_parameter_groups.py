"""Weight decay and learning rates by name against torch's param_groups; buckets of any size; the size of an update."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Parameter, Tensor

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.holdings import Held
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.optimizer_sharding import OptimizerSharding
from ms_models.train.config import GroupConfig, OptimizerConfig
from ms_models.train.gradients import GradientBuffers
from ms_models.train.optimizer import AdamW, label
from ms_models.train.parameter_groups import ParameterGroups, Treatment

SHAPES = {
    "embed.weight": (9, 4),
    "h.0.norm.weight": (4,),
    "h.0.up.weight": (6, 4),
    "h.0.up.bias": (6,),
    "head.weight": (9, 4),
}
GROUPS = (GroupConfig(r"^head\.", lr_factor=0.5, weight_decay=0.0), GroupConfig(r"norm|^h", lr_factor=2.0))
CONFIG = OptimizerConfig(weight_decay=0.3, eps=1e-6, no_decay=(r"bias$", "embed"), groups=GROUPS)
LRS = (0.01, 0.02, 0.005)
TOLERANCE = 1e-6  # as in test_run_optimizer.py
# What torch calls the same: decay, and what the learning rate is multiplied by.
EXPECTED = {
    "embed.weight": (0.0, 1.0),
    "h.0.norm.weight": (0.3, 2.0),
    "h.0.up.weight": (0.3, 2.0),
    "h.0.up.bias": (0.0, 2.0),
    "head.weight": (0.0, 0.5),
}


def values(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def ours(config: OptimizerConfig, elements: int, jit: bool = False) -> tuple[dict[str, np.ndarray], list[float], int]:
    """Weights after the steps, the ratio of each update, and the number of buckets."""
    compiled: Any = ms.jit if jit else lambda function: function
    parameters = [Parameter(Tensor(value), name=name) for name, value in values(0).items()]
    wholes = {name: Arrangement.of(name, shape) for name, shape in SHAPES.items()}
    held = {name: Held(name, whole, whole, "ffn", False, (0,), True) for name, whole in wholes.items()}
    groups = ParameterGroups(config)
    labels = [label(parameter, groups) for parameter in parameters]
    sharding = OptimizerSharding(parameters, held, Mesh.single(), labels, elements)
    buffers, optimizer = GradientBuffers(sharding), AdamW(sharding, config, compiled)
    add, ratios = buffers.adder(parameters), []
    for number, lr in enumerate(LRS, 1):
        buffers.zero()
        add([Tensor(value) for value in values(number).values()])
        moved, size = optimizer.update(buffers.reduce(), lr, 1.0).asnumpy()
        ratios.append(float(np.sqrt(moved / size)))
    return {p.name: p.asnumpy().copy() for p in parameters}, ratios, len(sharding.buckets)


def theirs(expected: dict[str, tuple[float, float]]) -> tuple[dict[str, np.ndarray], list[float]]:
    parameters = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in values(0).items()}
    groups = [
        {"params": [parameters[name]], "weight_decay": decay, "factor": factor}
        for name, (decay, factor) in expected.items()
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=CONFIG.betas, eps=CONFIG.eps)
    ratios = []
    for number, lr in enumerate(LRS, 1):
        for name, gradient in values(number).items():
            parameters[name].grad = torch.from_numpy(gradient)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        before = torch.cat([p.detach().flatten().clone() for p in parameters.values()])
        optimizer.step()
        after = torch.cat([p.detach().flatten() for p in parameters.values()])
        ratios.append(float((after - before).norm() / before.norm()))
    return {name: p.detach().numpy() for name, p in parameters.items()}, ratios


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(a[name] - b[name]).max() / np.abs(b[name]).max()) for name in SHAPES)


@pytest.mark.parametrize("jit", [False, True])
def test_groups_are_torchs_param_groups(jit: bool) -> None:
    groups = ParameterGroups(CONFIG)
    assert {name: groups.of(name, SHAPES[name]) for name in SHAPES} == {n: Treatment(*e) for n, e in EXPECTED.items()}
    found, ratios, buckets = ours(CONFIG, 1000, jit)
    assert buckets == 4, "parameters that are treated alike share one"
    expected, expected_ratios = theirs(EXPECTED)
    assert distance(found, expected) < TOLERANCE
    assert ratios == pytest.approx(expected_ratios, rel=1e-5)
    # The comparison sees a factor and a decay that are left out.
    for field, wrong in (("h.0.up.bias", (0.0, 1.0)), ("h.0.up.weight", (0.0, 2.0))):
        assert distance(found, theirs({**EXPECTED, field: wrong})[0]) > 100 * TOLERANCE


def test_without_patterns_norms_and_biases_do_not_decay() -> None:
    groups = ParameterGroups(OptimizerConfig(weight_decay=0.3))
    found = {name: groups.of(name, shape).weight_decay for name, shape in SHAPES.items()}
    assert found == {name: 0.3 if len(shape) > 1 else 0.0 for name, shape in SHAPES.items()}
    everything = ParameterGroups(OptimizerConfig(weight_decay=0.3, no_decay=()))
    assert {everything.of(name, shape).weight_decay for name, shape in SHAPES.items()} == {0.3}


def test_results_do_not_depend_on_the_size_of_buckets() -> None:
    (whole, whole_ratios, few), (parts, part_ratios, many) = ours(CONFIG, 1000), ours(CONFIG, 1)
    assert (few, many) == (4, 5)
    assert all(np.array_equal(whole[name], parts[name]) for name in SHAPES)
    assert whole_ratios == pytest.approx(part_ratios, rel=1e-6)


def test_collectives_of_a_step_are_counted() -> None:
    parameters = [Parameter(Tensor(value), name=name) for name, value in values(0).items()]
    wholes = {name: Arrangement.of(name, shape) for name, shape in SHAPES.items()}
    held = {name: Held(name, whole, whole, "ffn", False, (0,), True) for name, whole in wholes.items()}

    def count(elements: int, **layout: int) -> int:
        mesh = Mesh(ParallelLayout(**layout))
        sharding = OptimizerSharding(parameters, held, mesh, [0] * len(parameters), elements)
        return sharding.collectives(micro_batches=3)

    assert count(1000) == 0
    assert count(1000, dp=2) == 1, "one sum"
    assert count(40, dp=2) == 3
    assert count(1000, dp=2, zero=1) == 2, "a share of the sum, and the updated parameters"
    assert count(1000, dp=2, zero=2) == 4, "a share of the sum after each of the micro-batches"


def test_patterns_that_match_nothing_are_refused() -> None:
    for config, message in (
        (OptimizerConfig(no_decay=("bias$", "layernorm")), r"optimizer\.no_decay\[1\] 'layernorm'"),
        (OptimizerConfig(groups=(GroupConfig("^head"), GroupConfig("head"))), r"optimizer\.groups\[1\]\.match 'head'"),
    ):
        with pytest.raises(UserError, match=message):
            ParameterGroups(config).check(list(SHAPES), Mesh.single())
    ParameterGroups(CONFIG).check(list(SHAPES), Mesh.single())
    with pytest.raises(UserError, match=r"'optimizer\.no_decay\[0\]' is no regular expression: '\('"):
        OptimizerConfig(no_decay=("(",))
    with pytest.raises(UserError, match="bucket_mib must be above 0"):
        ParallelOptions(bucket_mib=0)
    assert ParallelOptions().bucket_elements == 8 << 20
