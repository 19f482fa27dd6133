"""Mixture of experts in one process: the layout of blocks against numpy, routers and experts against torch."""

from __future__ import annotations

import itertools
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import Tensor, nn
from tiny_models import relative

from ms_models.layers import moe_blocks
from ms_models.layers.moe import Experts, MoE
from ms_models.layers.moe_blocks import BlockLayout, Collect
from ms_models.layers.moe_router import SoftmaxRouter
from ms_models.parallel.linear import Linear
from ms_models.parallel.mesh import Mesh

# fp32 rounding in another order of summation; measured at most 1e-6.
TOLERANCE = 1e-5
FAULT = 100  # a planted fault must exceed the tolerance this many times

ms.runtime.launch_blocking()


def random_routing(rng: np.random.Generator, tokens: int, chosen: int, experts: int) -> np.ndarray:
    return np.argsort(rng.random((tokens, experts)), 1)[:, :chosen].astype(np.int32)


ROUTINGS: dict[str, np.ndarray] = {
    "balanced": random_routing(np.random.default_rng(0), 40, 2, 6),
    "one token": np.array([[4, 1]], np.int32),
    "every expert": np.tile(np.arange(6, dtype=np.int32)[::-1], (7, 1)),
    "all to one": np.full((33, 1), 3, np.int32),
    "none for most": np.tile(np.array([5, 0], np.int32), (19, 1)),
}
RANGES = [(0, 6), (0, 3), (3, 6), (1, 2)]


@pytest.mark.parametrize("held", RANGES, ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
def test_every_assignment_gets_a_row_of_its_own_in_a_block_of_its_expert(name: str, held: tuple[int, int]) -> None:
    routing, (first, last) = ROUTINGS[name], held
    tokens, chosen = routing.shape
    layout = BlockLayout(last - first, first)
    row, here, source, filled, owner = (t.asnumpy() for t in layout(Tensor(routing)))
    blocks, rows = layout.sizes(tokens, chosen)
    assert owner.shape == (blocks,) and source.shape == filled.shape == (blocks * rows,)
    assert np.array_equal(here, (routing >= first) & (routing < last))
    taken = row[here]
    assert len(set(taken.tolist())) == here.sum() == filled.sum() and filled[taken].all()
    assert np.array_equal(source[taken], np.flatnonzero(here))
    assert np.array_equal(owner[taken // rows] + first, routing[here])
    assert owner.min() >= 0 and owner.max() < last - first  # of blocks that are not needed, too
    assert row.min() >= 0 and row.max() < blocks * rows and source.min() >= 0 and source.max() < routing.size


@pytest.mark.parametrize(("tokens", "chosen", "experts"), [(5, 2, 3), (4, 3, 4), (12, 1, 2), (1, 2, 4)])
def test_blocks_suffice_for_every_routing_and_one_fewer_would_not(tokens: int, chosen: int, experts: int) -> None:
    blocks, rows = BlockLayout(experts).sizes(tokens, chosen)
    counts = itertools.product(range(tokens + 1), repeat=experts)
    needed = [sum(-(-n // rows) for n in count) for count in counts if sum(count) == tokens * chosen]
    assert max(needed) <= blocks
    if chosen == 1:  # otherwise not every such count is a routing
        assert max(needed) == blocks


def test_rows_grow_with_the_assignments_and_not_with_the_experts() -> None:
    for tokens, chosen, experts in ((1024, 2, 8), (4096, 8, 128), (40000, 8, 256)):
        blocks, rows = BlockLayout(experts).sizes(tokens, chosen)
        assert blocks * rows < tokens * chosen + experts * rows <= 2.1 * tokens * chosen


def test_rows_that_nothing_reads_cannot_spoil_a_token() -> None:
    """A row that stands in for an expert of another rank may hold anything."""
    rows = Tensor(np.array([[np.inf, np.nan], [1, 2]], np.float32))
    row, here = Tensor([[0, 1]], ms.int32), Tensor([[False, True]])
    source, filled = Tensor([0, 1], ms.int32), Tensor([False, True])
    inputs = (rows, Tensor([[0.5, 3.0]], ms.float32), row, here, source, filled)
    collect = Collect()

    def total(*arguments: Tensor) -> Tensor:
        return collect(*arguments).sum()

    assert collect(*inputs).asnumpy().tolist() == [[3.0, 6.0]]
    drows, dweights = ms.grad(total, (0, 1))(*inputs)
    assert drows.asnumpy().tolist() == [[0.0, 0.0], [3.0, 3.0]]
    assert dweights.asnumpy().tolist() == [[0.0, 3.0]]


HIDDEN, FFN = 10, 7


def build(experts: int, chosen: int, *, renormalise: bool) -> MoE:
    alone = Mesh.single().group("tp")
    stack = Experts(experts, HIDDEN, FFN, tp=alone, ep=alone, enter=nn.Identity(), leave=nn.Identity())
    layer = MoE(SoftmaxRouter(Linear(HIDDEN, experts), chosen, renormalise=renormalise), stack)
    rng = np.random.default_rng(0)
    for parameter in layer.get_parameters():
        parameter.set_data(Tensor((rng.standard_normal(parameter.shape) * 0.3).astype(np.float32)))
    return layer


def batch(length: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal((2, length, HIDDEN)).astype(np.float32) for _ in range(2))
    return x, dy


def in_torch(layer: MoE, length: int, chosen: int, *, renormalise: bool) -> dict[str, np.ndarray]:
    """Every expert on every token, in torch: output, and the gradients of the input and of all parameters."""
    x, dy = (torch.tensor(array) for array in batch(length))
    x.requires_grad_()
    weights = {p.name: torch.tensor(p.asnumpy(), requires_grad=True) for p in layer.get_parameters()}
    probabilities = torch.softmax(x @ weights["gate.weight"].T, -1)
    values, indices = probabilities.topk(chosen)
    if renormalise:
        values = values / values.sum(-1, keepdim=True)
    shares = torch.zeros_like(probabilities).scatter(-1, indices, values)
    gate, up = torch.einsum("bsm,efm->bsef", x, weights["experts.gate_up_proj"]).chunk(2, -1)
    each = torch.einsum("bsef,emf->bsem", torch.nn.functional.silu(gate) * up, weights["experts.down_proj"])
    y = (each * shares.unsqueeze(-1)).sum(2)
    (y * dy).sum().backward()
    gradients = {name: weight.grad.numpy() for name, weight in weights.items()}
    return {"output": y.detach().numpy(), "input": x.grad.numpy(), **gradients}


def in_mindspore(layer: MoE, length: int, *, jit: bool) -> dict[str, np.ndarray]:
    parameters = list(layer.trainable_params())

    def weighted(x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        y = layer(x)
        return (y * dy).sum(), y

    step: Any = ms.value_and_grad(weighted, 0, parameters, has_aux=True)
    (_, y), (dx, gradients) = (ms.jit(step) if jit else step)(*(Tensor(array) for array in batch(length)))
    named = {p.name: g.asnumpy() for p, g in zip(parameters, gradients, strict=True)}
    return {"output": y.asnumpy(), "input": dx.asnumpy(), **named}


CASES = [(6, 2, 13, True), (6, 2, 13, False), (5, 5, 1, False), (70, 3, 2, True), (3, 1, 200, False)]


@pytest.mark.parametrize(("experts", "chosen", "length", "renormalise"), CASES)
def test_equals_torch(experts: int, chosen: int, length: int, renormalise: bool) -> None:
    layer = build(experts, chosen, renormalise=renormalise)
    expected = in_torch(layer, length, chosen, renormalise=renormalise)
    found = in_mindspore(layer, length, jit=False)
    errors = {name: relative(found[name], value) for name, value in expected.items()}
    assert set(found) == set(expected) and max(errors.values()) < TOLERANCE, errors


def test_compiled_equals_torch() -> None:
    layer = build(6, 2, renormalise=True)
    expected, found = in_torch(layer, 13, 2, renormalise=True), in_mindspore(layer, 13, jit=True)
    errors = {name: relative(found[name], value) for name, value in expected.items()}
    assert set(found) == set(expected) and max(errors.values()) < TOLERANCE, errors


def test_the_size_of_a_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build(6, 2, renormalise=True)
    expected = in_mindspore(layer, 13, jit=False)
    assert BlockLayout(6).sizes(26, 2)[1] == 4
    monkeypatch.setattr(moe_blocks, "LARGEST_BLOCK", 1)
    found = in_mindspore(layer, 13, jit=False)
    assert max(relative(found[name], value) for name, value in expected.items()) < TOLERANCE


def test_wrong_weights_are_seen() -> None:
    layer = build(6, 2, renormalise=True)
    expected, found = in_torch(layer, 13, 2, renormalise=False), in_mindspore(layer, 13, jit=False)
    for name, value in expected.items():
        assert relative(found[name], value) > FAULT * TOLERANCE, name
