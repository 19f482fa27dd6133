"""Collectives and DistributedDataParallel of ms_models/compat on two ranks, against numpy and torch in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compat_worker import DTYPES, operand
from harness import Launch, launch

RANKS = 2
pytestmark = pytest.mark.multi_process


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(Path(__file__).with_name("compat_worker.py"), RANKS, tmp_path_factory.mktemp("compat"))
    result.check(RANKS)
    return result


def test_every_rank_has_its_place(run: Launch) -> None:
    for rank in range(RANKS):
        assert run.ranks[rank]["place"] == [rank, RANKS, True]
        assert run.ranks[rank]["spawned"] == [[rank, "a"]]
        assert "msrun --worker_num=3" in run.ranks[rank]["refused"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(run: Launch, dtype: str) -> None:
    both = np.stack([operand(rank, dtype) for rank in range(RANKS)])
    expected = {
        "sum": both.sum(0, dtype=dtype),
        "avg": (both.sum(0) / RANKS).astype(dtype),
        "product": both.prod(0, dtype=dtype),
        "min": both.min(0),
        "max": both.max(0),
    }
    for rank in range(RANKS):
        for op, values in expected.items():
            assert run.ranks[rank]["collectives"][f"{op} {dtype}"] == values.tolist(), op


def test_exchanges(run: Launch) -> None:
    both = [operand(rank, "float32").tolist() for rank in range(RANKS)]
    total = np.sum(both, axis=0).tolist()
    for rank in range(RANKS):
        found = run.ranks[rank]["collectives"]
        assert found["large"] == [2 * 2**40 + 1]
        assert found["flags"] == [True, True, False]
        assert found["broadcast"] == both[1]
        assert found["all_gather"] == both
        assert found["joined"] == both[0] + both[1]
        assert found["share"] == total[2 * rank : 2 * rank + 2]
        assert found["objects"] == [{"rank": 1}, "xx"]
        assert found["alone"] == ([0, 1] if rank == 1 else None)


def reference(local: bool) -> list[Any]:
    """The same training in one process: rank 0's start and, unless `local`, the mean of both ranks' gradients."""
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            values = np.linspace(-1, 1, parameter.numel(), dtype=np.float32).reshape(tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values + number))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    history = []
    for turn in range(3):
        for rank in range(1 if local else RANKS):
            batch = np.random.default_rng(10 * turn + rank).standard_normal((4, 3)).astype(np.float32)
            ((layer(torch.from_numpy(batch)) ** 2).mean() / (1 if local else RANKS)).backward()
        if turn == 1:
            continue
        optimizer.step()
        optimizer.zero_grad()
        history.append([parameter.detach().numpy().copy() for parameter in layer.parameters()])
    return history


@pytest.mark.parametrize(("kind", "prefix"), [("replicated", "module."), ("sharded", ""), ("wrapped", "")])
def test_data_parallel_training_is_training_on_all_batches(run: Launch, kind: str, prefix: str) -> None:
    for rank in range(RANKS):
        found = run.ranks[rank]["training"][kind]
        assert found["names"] == [f"{prefix}weight", f"{prefix}bias"]
        for step, parameters in zip(reference(local=False), found["history"], strict=True):
            for expected, actual in zip(step, parameters, strict=True):
                # float32 sums of a dozen terms, in another order
                np.testing.assert_allclose(np.array(actual), expected, rtol=1e-5, atol=1e-6)


def test_training_on_one_ranks_batches_is_something_else(run: Launch) -> None:
    last, alone = run.ranks[0]["training"]["replicated"]["history"][-1], reference(local=True)[-1]
    assert np.abs(np.array(last[0]) - alone[0]).max() > 1e-2
