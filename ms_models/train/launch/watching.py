"""Watches an attempt to its end, on each of its machines: the ranks here, where all ranks are, the other machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ms_models.train.launch import stacks
from ms_models.train.launch.beats import read_beats
from ms_models.train.launch.failure import Failure, first_reason
from ms_models.train.launch.peers import Peers
from ms_models.train.launch.processes import Ranks
from ms_models.train.launch.stacks import Trace
from ms_models.train.launch.stalls import Limits, Stillness, name_culprit

POLL_S = 0.2
SETTLE_S = 1.5
"""After a failure: how long to wait for another machine's, which may be its reason."""


class Watch:
    """One attempt, seen from one machine.

    Args:
        ranks: of this machine.
        peers: the other machines.
        limits: how long ranks may stay where they are.
        deadline: `time.monotonic()` at which the run has to be over; infinite for never.
        tick: called several times a second.
    """

    def __init__(self, ranks: Ranks, peers: Peers, limits: Limits, deadline: float, tick: Callable[[], None]) -> None:
        self._ranks, self._peers, self._limits, self._deadline, self._tick = ranks, peers, limits, deadline, tick
        self._place = ranks.place
        self.stillness = Stillness(range(self._place.world_size), time.monotonic())

    @property
    def step(self) -> int:
        """The furthest step that a rank was seen in, on the first machine of all ranks; 0 before the first step."""
        return max((beat.step for beat in self.stillness.beats.values() if beat is not None), default=0)

    def until_end(self) -> Failure | None:
        """Waits; None when every rank of all machines finished, else what went wrong first."""
        here: Failure | None = None
        while True:
            state = self._ranks.poll()
            self._look()
            self._tick()
            if isinstance(state, Failure) and here is None:
                here = state
                self._peers.report(here)
            failures = [*self._peers.failures(), *([here] if here else [])]
            if failures and self._peers.decides:
                return self._settled(failures)
            if there := self._peers.failures():
                return there[0]
            if self._peers.wants_traces():
                self._peers.answer(self._traces())
            if state is True and self._peers.is_over() and not self._peers.running():
                return None
            if self._peers.decides and (late := self._overdue()):
                return late
            time.sleep(POLL_S)

    def _look(self) -> None:
        beats = read_beats(self._ranks.logs, self._place.ranks)
        self._peers.publish(beats, list(self._ranks.running()))
        self.stillness.look({**beats, **self._peers.beats()}, time.monotonic())

    def _settled(self, failures: list[Failure]) -> Failure:
        if self._place.nodes > 1:
            end = time.monotonic() + max(SETTLE_S, self._peers.doubtful_s())
            while time.monotonic() < end:
                self._tick()
                failures = list({*failures, *self._peers.failures()})
                time.sleep(POLL_S)
        return first_reason(failures)

    def _overdue(self) -> Failure | None:
        now = time.monotonic()
        running = sorted([*self._ranks.running(), *self._peers.running()])
        if now > self._deadline:
            self._traces()
            return Failure("launch.timeout_s: not finished in time", cause="timeout", at=time.time())
        behind = self.stillness.stalled(running, self._limits, now)
        if not running or not behind:
            return None
        silent = min(self.stillness.silence(rank, now) for rank in behind)
        traces = {**self._traces(), **self._peers.traces()}
        verdict = name_culprit(behind, self.stillness.beats, traces)
        said = f"hangs (launch.stall_s, launch.compile_s: silent for {silent:.0f} s): {verdict.reason}"
        if verdict.rank is None:
            where = "; ".join(f"rank {rank}: {trace.last}" for rank, trace in sorted(traces.items())[:8])
            return Failure(f"{said}. {where}; stacks: {self._stacks('*')}", cause="stalled", at=time.time())
        trace = traces.get(verdict.rank)
        last = f"; it stands at {trace.last}" if trace is not None else ""
        found = Failure(f"{said}{last}; stacks: {self._stacks(verdict.rank)}", verdict.rank, "stalled", at=time.time())
        return found if self._place.nodes == 1 else replace(found, node=self._place.node_of(verdict.rank))

    def _traces(self) -> dict[int, Trace]:
        pids = {rank: pid for rank, pid in self._ranks.running().items() if pid is not None}
        return stacks.collect(self._ranks.logs, pids)

    def _stacks(self, rank: int | str) -> Path:
        return self._ranks.logs / f"stacks_rank_{rank}.txt"
