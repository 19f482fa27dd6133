"""Attention over two and four context-parallel ranks against attention in one process: outputs and gradients."""

from __future__ import annotations

import pytest
from harness import Launch

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]

RANKS = 4
# Sums over keys are added in another order; nothing else differs.
TOLERANCE = 1e-6
FAULT = 1000  # a planted fault must exceed the tolerance this many times
CASES, LEAVING_OUT, COMPILED = 6, 2, 2


@pytest.mark.parametrize("rank", range(RANKS))
def test_outputs_and_gradients_equal_one_process(four_ranks: Launch, rank: int) -> None:
    found = four_ranks.ranks[rank]["context"]
    assert found["index"] == [rank % 2, rank]
    assert len(found["errors"]) == 2 * 2 * CASES + 2 * LEAVING_OUT + COMPILED + 1
    for name, errors in found["errors"].items():
        assert set(errors) == {"y", "q", "k", "v"}
        assert max(errors.values()) < TOLERANCE, (name, errors)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize(
    "fault",
    ["block skipped", "bias of another block", "merged without scaling", "nothing travels", "wrong half left out"],
)
def test_planted_faults_are_seen(four_ranks: Launch, rank: int, fault: str) -> None:
    errors = four_ranks.ranks[rank]["context"]["faults"][fault]
    assert max(errors.values()) > FAULT * TOLERANCE, errors
