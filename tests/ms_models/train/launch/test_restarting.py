"""Which failures are tried again, and what stands about them in `restarts.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ms_models.train.launch.failure import Cause, Failure, first_reason
from ms_models.train.launch.restarting import RECORD, Attempt, Restarts

DIED = Failure("died of signal 9", 1, "died")


@pytest.mark.parametrize("cause", ["user", "run", "interrupted", "timeout"])
def test_what_would_come_again_is_not_tried_again(tmp_path: Path, cause: Cause) -> None:
    assert Restarts(tmp_path, 3, 0).refusal(Failure("no", 1, cause), Attempt(1, None), 5) == ""


@pytest.mark.parametrize("cause", ["died", "lost", "stalled", "defect", "launcher"])
def test_the_rest_is_while_the_budget_lasts(tmp_path: Path, cause: Cause) -> None:
    restarts, failure = Restarts(tmp_path, 2, 3.0), Failure("no", 1, cause)
    pauses = []
    for number in (1, 2):
        attempt = Attempt(number, None if number == 1 else "step_00000005")
        assert restarts.refusal(failure, attempt, 5 * number) is None
        pauses.append(restarts.take(failure, attempt, 5 * number, f"step_0000000{number}"))
    assert pauses == [3.0, 6.0]
    refusal = restarts.refusal(failure, Attempt(3, "step_00000010"), 15)
    assert refusal == "not restarted: launch.restarts=2 are used up"
    first, second = (json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines())
    assert (first["restart"], first["cause"], first["rank"], first["step"]) == (1, cause, 1, 5)
    assert (second["resumed_before"], second["resumes"], second["pause_s"]) == ("step_00000005", "step_00000002", 6.0)


def test_no_restarts_are_asked_for(tmp_path: Path) -> None:
    assert Restarts(tmp_path, 0, 1).refusal(DIED, Attempt(1, None), 5) == ""
    assert not (tmp_path / RECORD).exists()


def test_the_same_end_in_the_same_step_after_the_same_start_is_the_last(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path, 9, 0)
    assert restarts.refusal(DIED, Attempt(1, None), 5) is None
    # Another step, another rank, or a checkpoint in between is progress of a kind.
    assert restarts.refusal(DIED, Attempt(2, None), 6) is None
    assert restarts.refusal(Failure("died", 0, "died"), Attempt(3, None), 6) is None
    assert restarts.refusal(Failure("died", 0, "died"), Attempt(4, "step_00000003"), 6) is None
    refusal = restarts.refusal(Failure("died", 0, "died"), Attempt(5, "step_00000003"), 6)
    assert refusal is not None and "ended the same way in step 6" in refusal


def test_pauses_grow_to_five_minutes(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path, 9, 100)
    assert [restarts.take(DIED, Attempt(1, None), 1, None) for _ in range(4)] == [100, 200, 300, 300]


def test_of_several_failures_the_others_follow_from_one() -> None:
    consequence = Failure("connection lost", 0, "defect", at=1.0)
    lost = Failure("lost", cause="lost", node=1, at=2.0)
    assert first_reason([consequence, DIED, lost]) == DIED
    assert first_reason([consequence, lost]) == lost
    assert first_reason([Failure("b", 1, "defect", at=2.0), consequence]) == consequence
    assert Failure.from_dict(json.loads(json.dumps(lost.to_dict()))) == lost
