"""Attention over two and four context-parallel ranks against attention in one process: outputs and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Launch, launch

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("context_worker.py")
RANKS = 4
# Sums over keys are added in another order; nothing else differs.
TOLERANCE = 1e-6
FAULT = 1000  # a planted fault must exceed the tolerance this many times
CASES = 6
COMPILED = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(WORKER, RANKS, tmp_path_factory.mktemp("context"), timeout=300)
    result.check(RANKS)
    return result


@pytest.mark.parametrize("rank", range(RANKS))
def test_outputs_and_gradients_equal_one_process(run: Launch, rank: int) -> None:
    found = run.ranks[rank]
    assert found["index"] == [rank % 2, rank]
    assert len(found["errors"]) == 2 * 2 * CASES + 3 * COMPILED + 1
    for name, errors in found["errors"].items():
        assert set(errors) == {"y", "q", "k", "v"}
        assert max(errors.values()) < TOLERANCE, (name, errors)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(
    "fault", ["block skipped", "bias of another block", "merged without scaling", "nothing travels"]
)
def test_planted_faults_are_seen(run: Launch, rank: int, fault: str) -> None:
    errors = run.ranks[rank]["faults"][fault]
    assert max(errors.values()) > FAULT * TOLERANCE, errors
