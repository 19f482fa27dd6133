"""Collectives over two ranks, and over four in sub-groups: results, gradients and native code, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Launch, launch

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("collectives_worker.py")
COLLECTIVES, GRADIENTS, REFUSALS = 15, 10, 3
STAND_INS = 9


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(WORKER, 2, tmp_path_factory.mktemp("pair"), timeout=300)
    result.check(2)
    return result


def wrong(cases: dict[str, bool]) -> list[str]:
    return [name for name, right in cases.items() if not right]


@pytest.mark.parametrize(
    ("section", "count"),
    [
        ("forward", 5 * COLLECTIVES + REFUSALS),
        ("forward jit", 2 * COLLECTIVES + REFUSALS),
        ("gradient", GRADIENTS),
        ("gradient jit", 1),
        ("native", COLLECTIVES),
        ("native jit", COLLECTIVES - STAND_INS),
    ],
)
def test_two_ranks(two: Launch, section: str, count: int) -> None:
    for rank in range(2):
        cases = two.ranks[rank][section]
        assert len(cases) == count
        assert wrong(cases) == []


FAULTS = {
    "all-reduce dropped": {"copy gradient", "gather for sharded gradient", "reduce_scatter gradient"},
    "all-reduce doubled": {
        "all_reduce fp32",
        "reduce_scatter rows fp32",
        "copy gradient",
        "gather for sharded gradient",
    },
    "reduction of a reduce-scatter dropped": {
        "reduce_scatter rows fp32",
        "reduce_scatter columns fp32",
        "gather for sharded gradient",
    },
    "shift stays": {"shift gradient"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(two: Launch, fault: str) -> None:
    for rank in range(2):
        assert FAULTS[fault] <= set(two.ranks[rank]["faults"][fault])


@pytest.mark.grid
def test_four_ranks_in_sub_groups(four_ranks: Launch) -> None:
    for rank in range(4):
        found = four_ranks.ranks[rank]["collectives"]
        assert found["coordinates"] == {"tp": rank % 2, "cp": 0, "dp": rank // 2, "pp": 0}
        assert {name: len(cases) for name, cases in found["cases"].items()} == {
            **{f"{axes} forward": 2 * COLLECTIVES + REFUSALS for axes in ("tp", "dp", "tp+dp")},
            **{f"{axes} gradient": GRADIENTS for axes in ("tp", "dp", "tp+dp")},
            "tp+dp native": COLLECTIVES,
        }
        assert [f"{name}: {wrong(cases)}" for name, cases in found["cases"].items() if wrong(cases)] == []
        assert found["fault"] == ["shift"], "of two ranks, forth and back are the same"
