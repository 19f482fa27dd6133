"""The closed forms of a plan against the tables that the runner carries out."""

from __future__ import annotations

import pytest

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.plan.in_flight import PassCosts, chunks_held, idle
from ms_models.parallel.schedules import build_schedule
from ms_models.parallel.schedules.running import Costs, Transport, peak_activations, run_table

SIZES = [(2, 2), (2, 8), (4, 4), (4, 16), (5, 10), (8, 32)]
NAMES = [("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved", 2), ("interleaved", 4)]


@pytest.mark.parametrize(("pp", "m"), SIZES)
@pytest.mark.parametrize(("name", "vpp"), NAMES)
def test_chunks_held_are_those_of_the_table(name: str, vpp: int, pp: int, m: int) -> None:
    table = build_schedule(name, ParallelLayout(pp=pp, vpp=vpp), m, Transport.ASYNCHRONOUS)
    assert tuple(chunks_held(name, pp, vpp, m, stage) for stage in range(pp)) == peak_activations(table)


@pytest.mark.parametrize(("pp", "m"), SIZES)
@pytest.mark.parametrize(("name", "vpp"), NAMES)
def test_idle_time_is_that_of_the_table(name: str, vpp: int, pp: int, m: int) -> None:
    """With stages that compute their forward pass again: 1, then 3, or twice 2 in two parts."""
    costs = Costs(1 / vpp, 3 / vpp, 2 / vpp, 2 / vpp)
    table = build_schedule(name, ParallelLayout(pp=pp, vpp=vpp), m, Transport.ASYNCHRONOUS)
    line = run_table(table, Transport.ASYNCHRONOUS, costs)
    found = idle(name, pp, vpp, PassCosts(1, 3, 2))
    assert line.bubble * line.length == pytest.approx(found, abs=1e-9)


def test_an_unknown_schedule_is_an_error() -> None:
    with pytest.raises(UserError, match="unknown schedule 'dualpipe'"):
        chunks_held("dualpipe", 2, 1, 4, 0)
