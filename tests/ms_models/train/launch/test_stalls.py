"""When a run hangs, and who is named."""

from __future__ import annotations

import pytest

from ms_models.train.launch.beats import Beat
from ms_models.train.launch.stacks import Trace
from ms_models.train.launch.stalls import Limits, Stillness, name_culprit

LIMITS = Limits(stall_s=10, compile_s=100)
COLLECTIVE = Trace("sleeping", ("mindspore/common/api.py:1 in run", "train/step.py:2 in step"))
PYTHON = Trace("sleeping", ("data/loader.py:7 in next_step", "train/loop.py:2 in run"))
OTHER = Trace("sleeping", ("mindspore/ops/x.py:5 in call", "train/step.py:9 in step"))


def beat(step: int, phase: str, *, is_first: bool = False) -> Beat:
    return Beat(step, phase, 1, is_first)


def still(*beats: Beat | None) -> Stillness:
    watched = Stillness(range(len(beats)), now=0.0)
    watched.look({rank: one for rank, one in enumerate(beats) if one is not None}, now=0.0)
    return watched


def test_a_run_hangs_when_those_behind_stand_still_beyond_their_limit() -> None:
    watched = still(beat(5, "reduce"), beat(5, "data"))
    assert watched.stalled([0, 1], LIMITS, now=10.0) == []
    assert watched.stalled([0, 1], LIMITS, now=10.1) == [1]
    # Where the one behind goes on, the others' silence says nothing.
    watched.look({1: Beat(5, "data", 2, False)}, now=9.0)
    assert watched.stalled([0, 1], LIMITS, now=18.0) == []
    # A rank that is done is not waited for.
    assert watched.stalled([0], LIMITS, now=18.0) == [0]
    assert watched.stalled([], LIMITS, now=18.0) == []


def test_compiling_has_a_limit_of_its_own_and_those_who_wait_for_it_share_it() -> None:
    watched = still(beat(1, "reduce"), beat(1, "compute", is_first=True))
    assert watched.stalled([0, 1], LIMITS, now=99.0) == []
    assert watched.stalled([0, 1], LIMITS, now=101.0) == [1]
    assert still(None).stalled([0], LIMITS, now=99.0) == []
    assert still(None).stalled([0], LIMITS, now=101.0) == [0]


@pytest.mark.parametrize(
    ("limits", "is_first", "expected"),
    [
        (Limits(0, 0), False, float("inf")),
        (Limits(0, 50), True, float("inf")),
        (Limits(10, 0), True, float("inf")),
        (Limits(10, 0), False, 10),
        (Limits(10, 5), True, 10),
        (Limits(10, 50), True, 50),
        (Limits(10, 50), False, 10),
    ],
)
def test_limits(limits: Limits, is_first: bool, expected: float) -> None:
    assert limits.of(beat(1, "compute", is_first=is_first)) == expected


@pytest.mark.parametrize(
    ("beats", "traces", "rank", "reason"),
    [
        # A stopped process, whatever else is seen.
        ((beat(5, "reduce"), beat(5, "compute")), (Trace("stopped", ()), COLLECTIVE), 0, "is stopped"),
        # The one that has come least far.
        ((beat(5, "reduce"), beat(5, "data")), (COLLECTIVE, PYTHON), 1, "it is in step 5, data, while the others wait"),
        ((beat(6, "data"), beat(5, "report")), (COLLECTIVE, COLLECTIVE), 1, "it is in step 5, report"),
        ((None, beat(0, "start")), (COLLECTIVE, COLLECTIVE), 0, "no phase yet"),
        # At the same place: the one in no operation, then the one unlike the others.
        ((beat(5, "compute"), beat(5, "compute")), (COLLECTIVE, PYTHON), 1, "it is in no operation"),
        ((beat(5, "compute"),) * 3, (COLLECTIVE, OTHER, COLLECTIVE), 1, "its stack differs from those of the 2 other"),
        ((beat(5, "compute"),) * 2, (COLLECTIVE, OTHER), None, "nothing tells them apart"),
        ((beat(5, "compute"),) * 3, (COLLECTIVE,) * 3, None, "3 ranks are in step 5, compute"),
    ],
)
def test_the_culprit(beats: tuple[Beat | None, ...], traces: tuple[Trace, ...], rank: int | None, reason: str) -> None:
    watched = still(*beats)
    behind = watched.stalled(range(len(beats)), LIMITS, now=1000.0)
    verdict = name_culprit(behind, watched.beats, dict(enumerate(traces)))
    assert verdict.rank == rank
    assert reason in verdict.reason
