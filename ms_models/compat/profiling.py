"""torch's profiler for the parts of a program that `record_function` names; single operations are not seen.

A region waits for the device at its ends while a profiler records, so its time is that of its own work.
`mindspore.profiler` measures kernels.
"""

from __future__ import annotations

import contextlib
import enum
import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .device import synchronize


class ProfilerActivity(enum.Enum):
    """What torch's profiler can watch; here the words only compare."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(enum.Enum):
    """What a profiler does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """The action of each step: after `skip_first` steps cycles of wait, warm-up and recording.

    Args:
        wait: steps without recording at the start of a cycle.
        warmup: steps that are run but not kept.
        active: recorded steps; at the last one the cycle is handed over.
        repeat: number of cycles, 0 for no end.
        skip_first: steps before the first cycle.
        skip_first_wait: not 0: the first cycle begins behind its wait.

    Raises:
        AssertionError: a number is negative, or nothing is recorded.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise AssertionError("Invalid profiler schedule arguments.")
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first - (wait if skip_first_wait else 0)
        position = step % length
        if (repeat and step >= repeat * length) or position < wait:
            return ProfilerAction.NONE
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if position < length - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


class Event:
    """One region, or all regions of a name: times in microseconds."""

    def __init__(self, key: str, start: float = 0.0, thread: int = 0) -> None:
        self.key = self.name = key
        self.start, self.thread = start, thread
        self.count, self.cpu_time_total, self.self_cpu_time_total = 0, 0.0, 0.0

    @property
    def cpu_time(self) -> float:
        """Mean time of one region."""
        return self.cpu_time_total / self.count if self.count else 0.0

    def add(self, other: Event) -> None:
        """Count another event in."""
        self.count += other.count
        self.cpu_time_total += other.cpu_time_total
        self.self_cpu_time_total += other.self_cpu_time_total


class EventList(list[Event]):
    """Events with torch's table."""

    def table(self, sort_by: str | None = None, row_limit: int = 100, **layout: Any) -> str:
        """Lines of text, one per name; `layout` (widths, header) is not looked at."""
        rows = sorted(self, key=lambda e: -getattr(e, sort_by, e.cpu_time_total)) if sort_by else list(self)
        width = max([len("Name"), *(len(event.key) for event in rows)])
        total = sum(event.self_cpu_time_total for event in self)
        lines = [f"{'Name':>{width}}  {'Self CPU':>12}  {'CPU total':>12}  {'CPU time avg':>12}  {'# of Calls':>10}"]
        for event in rows if row_limit < 0 else rows[:row_limit]:
            times = (event.self_cpu_time_total, event.cpu_time_total, event.cpu_time)
            lines.append(
                "  ".join([f"{event.key:>{width}}", *(f"{t / 1e3:10.3f}ms" for t in times), f"{event.count:>10}"])
            )
        return "\n".join([*lines, f"Self CPU time total: {total / 1e3:.3f}ms"])

    def total_average(self) -> Event:
        """Everything in one event; nested regions count once."""
        total = Event("Total")
        for event in self:
            total.add(event)
        total.cpu_time_total = total.self_cpu_time_total
        return total


_active: list[profile] = []


class record_function(contextlib.ContextDecorator):
    """Names a part of a program; context and decorator."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self._open: list[tuple[profile, Event, list[float]]] = []

    def __enter__(self) -> record_function:
        for profiler in _active:
            self._open.append((profiler, *profiler._begin(self.name)))
        return self

    def __exit__(self, *exc: object) -> None:
        while self._open:
            profiler, event, inner = self._open.pop()
            profiler._end(event, inner)

    def _recreate_cm(self) -> record_function:
        return record_function(self.name)


class profile:
    """`torch.profiler.profile` and `torch.autograd.profiler.profile` for named regions.

    Args:
        activities: not looked at; times are those of the host, with the device's work waited for.
        schedule: action of each step, see `schedule`; without it everything is recorded.
        on_trace_ready: called with the profiler after each cycle.
        enabled: False records nothing.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        enabled: bool = True,
    ) -> None:
        self.activities, self.on_trace_ready, self.enabled = activities, on_trace_ready, enabled
        self.schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self._by_step = schedule is not None
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._events: list[Event] = []
        self._children = threading.local()
        self._step: record_function | None = None

    # -- recording
    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin at step 0."""
        if self.enabled:
            self._turn(self.schedule(self.step_num))

    def step(self) -> None:
        """The next step of the program begins."""
        if self.enabled:
            self.step_num += 1
            self._turn(self.schedule(self.step_num))

    def stop(self) -> None:
        """End; a cycle that is being recorded is handed over."""
        self._close_step()
        recorded = self.current_action in _RECORDING
        self._stop_recording()
        self.current_action = ProfilerAction.NONE
        if recorded and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _turn(self, action: ProfilerAction) -> None:
        previous, self.current_action = self.current_action, action
        self._close_step()
        if previous is ProfilerAction.RECORD_AND_SAVE:
            self._stop_recording()
            if self.on_trace_ready is not None:
                self.on_trace_ready(self)
        if action not in _RECORDING:
            self._stop_recording()
            return
        if previous is not ProfilerAction.RECORD:
            self._events = []
            _active.append(self)
        if self._by_step:
            self._step = record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _close_step(self) -> None:
        if self._step is not None:
            self._step.__exit__()
            self._step = None

    def _stop_recording(self) -> None:
        if self in _active:
            _active.remove(self)

    def _begin(self, name: str) -> tuple[Event, list[float]]:
        synchronize()
        if not hasattr(self._children, "times"):
            self._children.times = []
        self._children.times.append(0.0)
        return Event(name, time.perf_counter() * 1e6, threading.get_ident()), self._children.times

    def _end(self, event: Event, inner: list[float]) -> None:
        synchronize()
        event.count, event.cpu_time_total = 1, time.perf_counter() * 1e6 - event.start
        event.self_cpu_time_total = event.cpu_time_total - inner.pop()
        if inner:
            inner[-1] += event.cpu_time_total
        self._events.append(event)

    # -- results
    def events(self) -> EventList:
        """The regions in the order of their beginning."""
        return EventList(sorted(self._events, key=lambda event: event.start))

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """One event per name, one for all steps; shapes and stacks are not recorded."""
        found: dict[str, Event] = {}
        for event in self.events():
            key = "ProfilerStep*" if event.key.startswith("ProfilerStep#") else event.key
            found.setdefault(key, Event(key)).add(event)
        return EventList(found.values())

    def table(self, sort_by: str | None = None, row_limit: int = 100, **layout: Any) -> str:
        """The table of `key_averages`."""
        return self.key_averages().table(sort_by, row_limit, **layout)

    def total_average(self) -> Event:
        """Everything in one event."""
        return self.events().total_average()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the regions in the JSON form of chrome://tracing; a name that ends in .gz is compressed."""
        common = {"ph": "X", "cat": "user_annotation", "pid": os.getpid()}
        found = [
            {**common, "name": e.key, "ts": e.start, "dur": e.cpu_time_total, "tid": e.thread} for e in self.events()
        ]
        text = json.dumps({"schemaVersion": 1, "traceEvents": found}).encode()
        Path(path).write_bytes(gzip.compress(text) if str(path).endswith(".gz") else text)


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """A handler for `on_trace_ready` that writes one trace per cycle into a directory."""

    def write(profiler: profile) -> None:
        Path(dir_name).mkdir(parents=True, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
        profiler.export_chrome_trace(Path(dir_name) / name)

    return write
