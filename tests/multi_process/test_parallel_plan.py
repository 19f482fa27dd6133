"""Tensor parallelism by torch's plans on two ranks, against the same model in one torch process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import Launch, launch
from plan_worker import CLIP, HEADS, INNER, LENGTH, PLANS, VOCABULARY, WIDTH, start_value, targets, tokens
from torch import nn

RANKS = 2
# float32: sums of a few dozen terms in another order; the halves are added across ranks
RTOL, ATOL = 1e-5, 2e-6
pytestmark = pytest.mark.multi_process


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.attention = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in "qkvo"})
        self.mlp = nn.ModuleDict(
            {
                "gate": nn.Linear(WIDTH, INNER, bias=False),
                "up": nn.Linear(WIDTH, INNER, bias=False),
                "down": nn.Linear(INNER, WIDTH, bias=False),
            }
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, m = self.attention, self.mlp
        n = self.attention_norm(x)
        q, k, v = (a[name](n).view(len(x), LENGTH, HEADS, -1).transpose(1, 2) for name in "qkv")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + a["o"](mixed)
        n = self.mlp_norm(x)
        return x + m["down"](F.silu(m["gate"](n)) * m["up"](n))


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(VOCABULARY, WIDTH, padding_idx=7),
            "layers": nn.Sequential(Block(), Block()),
            "norm": nn.RMSNorm(WIDTH, eps=1e-6),
            "head": nn.Linear(WIDTH, VOCABULARY, bias=False),
        }
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(start_value(name, tuple(parameter.shape))))
    x = torch.from_numpy(tokens())
    for part in ("embedding", "layers", "norm", "head"):
        x = model[part](x)
    loss = F.cross_entropy(x.view(-1, VOCABULARY), torch.from_numpy(targets()).view(-1))
    loss.backward()
    gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters() if p.grad is not None}
    norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return {
        "loss": loss.item(),
        "logits": x.detach().numpy(),
        "gradients": gradients,
        "norm": float(norm),
        "updated": {name: p.detach().numpy() for name, p in model.named_parameters()},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(Path(__file__).with_name("plan_worker.py"), RANKS, tmp_path_factory.mktemp("plan"))
    result.check(RANKS)
    return result


def distance(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """The worst excess over the bound, by tensor; at most 0 when everything agrees."""
    assert sorted(found) == sorted(expected)
    return {
        name: float((np.abs(np.array(found[name]) - value) - RTOL * np.abs(value).max() - ATOL).max())
        for name, value in expected.items()
    }


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_computes_what_one_process_computes(run: Launch, reference: dict[str, Any], kind: str) -> None:
    for rank in range(RANKS):
        found = run.ranks[rank][kind]
        assert found["loss"] == pytest.approx(reference["loss"], rel=RTOL)
        np.testing.assert_allclose(found["logits"], reference["logits"], rtol=RTOL, atol=ATOL)
        worst = distance(found["gradients"], reference["gradients"])
        assert max(worst.values()) <= 0, worst
        # clipping must know the norm over all slices, or the update differs
        assert reference["norm"] > CLIP
        assert found["norm"] == pytest.approx(reference["norm"], rel=RTOL)
        worst = distance(found["updated"], reference["updated"])
        assert max(worst.values()) <= 0, worst


@pytest.mark.parametrize("kind", PLANS)
def test_each_rank_holds_its_slices_under_the_names_of_the_whole(
    run: Launch, reference: dict[str, Any], kind: str
) -> None:
    for rank in range(RANKS):
        shapes = run.ranks[rank][kind]["shapes"]
        assert sorted(shapes) == sorted(reference["updated"])
        assert shapes["embedding.weight"] == [VOCABULARY // RANKS, WIDTH]
        assert shapes["layers.1.attention.q.bias"] == [WIDTH // RANKS]
        assert shapes["layers.0.mlp.down.weight"] == [WIDTH, INNER // RANKS]
        assert shapes["layers.0.attention.o.bias"] == [WIDTH]


def test_layouts_and_their_gradients(run: Launch) -> None:
    whole, weights = np.arange(16.0).reshape(4, 4), np.arange(16.0).reshape(4, 4)
    ones = np.ones((2, 2))
    for rank in range(RANKS):
        found = run.ranks[rank]["layouts"]
        half = slice(2 * rank, 2 * rank + 2)
        assert found["spread"] == whole[:, half].tolist()
        assert found["turned"] == whole[half].tolist()
        assert found["full"] == whole.tolist()
        assert found["own"] == (whole + 100 * rank).tolist()
        expected = {
            "shard to replicate": [np.concatenate([ones, 2 * ones]), weights[half, :2]],
            # each rank weighs its column with the first one of the weights
            "replicate to shard": [(rank + 1) * ones[:, :1], np.concatenate([weights[:2, :1]] * 2, 1)],
            "partial to replicate": [3 * ones, weights[:2, :2]],
            "partial to shard": [3 * ones[:1], np.concatenate([weights[:1, :2]] * 2)],
            "shard to shard": [np.array([[1.0, 1, 2, 2]]), np.concatenate([weights[:1, half]] * 2)],
        }
        for name, (value, gradient) in expected.items():
            assert found[name] == [value.tolist(), gradient.tolist()], name
        assert found["functional"] == [12.0 * (rank + 1), (3 * ones).tolist()]
        assert "cannot be divided evenly" in found["uneven"]


def test_exchanges(run: Launch) -> None:
    first, second = run.ranks[0]["layouts"]["exchanges"], run.ranks[1]["layouts"]["exchanges"]
    assert [first["reduce"], second["reduce"]] == [[0, 1, 2, 3], [10, 12, 14, 16]]
    assert [first["gather"], second["gather"]] == [None, [[0, 1, 2, 3], [10, 11, 12, 13]]]
    assert [first["scatter"], second["scatter"]] == [[10, 11], [12, 13]]
    assert [first["reduce_scatter"], second["reduce_scatter"]] == [[10, 12], [14, 16]]
    assert [first["all_to_all"], second["all_to_all"]] == [[0, 10, 11], [1, 2, 3, 12, 13]]
    assert first["objects"] == [["r", "rr"], [0, 1], ["a"]]
    assert second["objects"] == [["r", "rr"], None, [{"b": 1}]]


def test_a_missing_sum_is_found(tmp_path: Path, reference: dict[str, Any]) -> None:
    broken = launch(Path(__file__).with_name("plan_worker.py"), RANKS, tmp_path / "fault", "--fault")
    broken.check(RANKS)
    worst = distance(broken.ranks[0]["tensor"]["gradients"], reference["gradients"])
    assert max(worst.values()) > 1e-3
