"""Profiles of named regions: nesting, steps, several profiles, traces."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from ms_models.compat import profiling
from ms_models.compat.profiling import profile, record_function, schedule, tensorboard_trace_handler


def test_own_time_is_without_the_regions_inside() -> None:
    with profile() as prof, record_function("outer"):
        for _ in range(2):
            with record_function("inner"):
                time.sleep(0.01)
    found = {event.key: event for event in prof.key_averages()}
    outer, inner = found["outer"], found["inner"]
    assert inner.count == 2 and inner.cpu_time_total >= 20_000  # two sleeps of 10 ms, in microseconds
    assert inner.self_cpu_time_total == inner.cpu_time_total
    # the outer region has nothing but the inner ones and the loop
    assert outer.self_cpu_time_total == pytest.approx(outer.cpu_time_total - inner.cpu_time_total)
    assert inner.key in prof.key_averages().table(sort_by="cpu_time_total").splitlines()[2]


def test_a_region_waits_for_its_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore starts work and returns: without waiting, the region that asks for the values would be charged."""
    seen: list[str] = []
    monkeypatch.setattr(profiling, "synchronize", lambda: seen.append("wait"))
    with record_function("outside"):
        seen.append("outside")
    with profile(), record_function("inside"):
        seen.append("inside")
    assert seen == ["outside", "wait", "inside", "wait"]


def test_nothing_is_kept_outside_of_a_profile() -> None:
    with record_function("before"):
        pass
    prof = profile()
    prof.start()
    prof.stop()
    with record_function("after"):
        pass
    with profile(enabled=False) as off, record_function("inside"):
        pass
    assert not prof.events() and not off.events()


def test_two_profiles_see_what_is_theirs() -> None:
    with profile() as first:
        with record_function("a"):
            pass
        with profile() as second, record_function("b"):
            pass
    assert [event.key for event in first.events()] == ["a", "b"]
    assert [event.key for event in second.events()] == ["b"]


def test_a_region_as_decorator_may_call_itself() -> None:
    @record_function("down")
    def down(n: int) -> int:
        return n if n == 0 else down(n - 1)

    with profile() as prof:
        assert down(3) == 0
    (event,) = prof.key_averages()
    assert event.count == 4


def test_traces_of_a_schedule(tmp_path: Path) -> None:
    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(schedule=plan, on_trace_ready=tensorboard_trace_handler(str(tmp_path), "me", use_gzip=True)) as prof:
        for number in range(6):
            with record_function(f"part {number}"):
                pass
            prof.step()
    (file,) = tmp_path.glob("me.*.pt.trace.json.gz")
    names = [event["name"] for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]]
    assert names == ["ProfilerStep#2", "part 2", "ProfilerStep#3", "part 3"]


@pytest.mark.parametrize("wrong", [{"wait": -1, "warmup": 0, "active": 1}, {"wait": 0, "warmup": 0, "active": 0}])
def test_a_schedule_needs_an_active_step(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        schedule(**wrong)
