"""A router with its experts on two ranks against one process: outputs, gradients of input, router and experts."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Launch, launch

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("experts_worker.py")
RANKS = 2
# Splitting a sum over ranks changes the order of fp32 additions, nothing else; measured here at most 2e-7.
TOLERANCE = 5e-6
FAULT = 1000  # a planted fault must exceed the tolerance this many times
COMPARED = {"output", "input", "gate.weight", "experts.gate_up_proj", "experts.down_proj"}
GRADIENTS_ONLY = {"gradient of tokens not summed", "weights do not enter"}  # the outputs do not show them


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(WORKER, RANKS, tmp_path_factory.mktemp("experts"))
    result.check(RANKS)
    for name in result.ranks[0]["cases"]:
        worst = max(max(result.ranks[rank]["cases"][name].values()) for rank in range(RANKS))
        print(f"{name}: {worst:.1e}")
    return result


def test_the_routing_is_unequal_and_one_expert_has_no_token(run: Launch) -> None:
    counts = run.ranks[0]["tokens per expert"]
    assert sum(counts) == 64 and counts[4] == 0 and max(counts) > 2 * sorted(counts)[1]


@pytest.mark.parametrize("rank", range(RANKS))
def test_layouts_equal_one_process(run: Launch, rank: int) -> None:
    cases = run.ranks[rank]["cases"]
    assert set(cases) == {
        *("ep pynative", "ep jit", "tp pynative"),
        *("tp with sequence parallel pynative", "tp with sequence parallel jit"),
    }
    for name, errors in cases.items():
        assert set(errors) == COMPARED
        assert max(errors.values()) < TOLERANCE, (name, errors)


@pytest.mark.parametrize("rank", range(RANKS))
def test_planted_faults_are_seen(run: Launch, rank: int) -> None:
    faults = run.ranks[rank]["faults"]
    assert len(faults) == 5 and set(faults) > GRADIENTS_ONLY
    for name, errors in faults.items():
        gradients = max(error for part, error in errors.items() if part != "output")
        if name in GRADIENTS_ONLY:
            assert errors["output"] < TOLERANCE < FAULT * TOLERANCE < gradients, (name, errors)
        else:
            assert errors["output"] > FAULT * TOLERANCE, (name, errors)
