"""Collectives over two ranks, and over four in sub-groups: results, gradients and native code, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Launch, launch

pytestmark = [pytest.mark.multi_process, pytest.mark.timeout(400)]

WORKER = Path(__file__).with_name("collectives_worker.py")
COLLECTIVES, GRADIENTS, REFUSALS = 15, 10, 3
STAND_INS = 9


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    result = launch(WORKER, 2, tmp_path_factory.mktemp("pair"), "pair", timeout=300)
    result.check(2)
    return result


def wrong(cases: dict[str, bool]) -> list[str]:
    return [name for name, right in cases.items() if not right]


@pytest.mark.parametrize(("mode", "kinds"), [("pynative", 5), ("jit", 2)])
def test_two_ranks(two: Launch, mode: str, kinds: int) -> None:
    for rank in range(2):
        found = two.ranks[rank][mode]
        assert len(found["forward"]) == COLLECTIVES * kinds + REFUSALS
        assert len(found["gradient"]) == GRADIENTS
        assert wrong(found["forward"]) == wrong(found["gradient"]) == []


def test_native_code_gives_the_same_bits(two: Launch) -> None:
    for rank in range(2):
        found = two.ranks[rank]
        assert len(found["pynative"]["native"]) == COLLECTIVES
        assert len(found["jit"]["native"]) == COLLECTIVES - STAND_INS
        assert wrong(found["pynative"]["native"]) == wrong(found["jit"]["native"]) == []


# For two ranks and, where a direction counts, for four.
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


def parts(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    for axes, sections in found.items():
        if axes not in ("coordinates", "fault"):
            yield from ((f"{axes} {name}", cases) for name, cases in sections.items())


def test_four_ranks_in_sub_groups(tmp_path: Path) -> None:
    result = launch(WORKER, 4, tmp_path, "grid", timeout=300)
    result.check(4)
    for rank in range(4):
        found = result.ranks[rank]
        assert found["coordinates"] == {"tp": rank % 2, "cp": 0, "dp": rank // 2, "pp": 0}
        sections = dict(parts(found))
        assert found["fault"] == ["shift gradient"]
        assert len(sections) == 3 * 2 + 2
        assert sum(len(cases) for cases in sections.values()) == (
            3 * (2 * COLLECTIVES + REFUSALS + GRADIENTS) + COLLECTIVES + GRADIENTS
        )
        assert {name: wrong(cases) for name, cases in sections.items() if wrong(cases)} == {}
