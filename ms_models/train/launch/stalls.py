"""Whether a run hangs, and which rank the others wait for. Nothing here touches a process or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ms_models.train.launch.beats import Beat
from ms_models.train.launch.stacks import Trace

UNANSWERING = frozenset({"stopped", "tracing-stop", "disk-sleep", "gone", "zombie"})
"""States of a process in which it computes nothing and answers nothing."""


@dataclass(frozen=True)
class Limits:
    """How long a rank may stay where it is."""

    stall_s: float
    """0 for ever."""
    compile_s: float
    """Where the process is in a phase for the first time; 0 for ever, else at least `stall_s`."""

    def of(self, beat: Beat | None) -> float:
        """Seconds for a rank; infinite for no limit."""
        is_first = beat is None or beat.is_first
        limit = max(self.stall_s, self.compile_s) if is_first and self.compile_s else self.stall_s
        return limit if self.stall_s and (self.compile_s or not is_first) else float("inf")


class Stillness:
    """Since when each rank stands where it is, by the watcher's own clock: those of other machines may differ."""

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self.beats: dict[int, Beat | None] = dict.fromkeys(ranks)
        self._since = dict.fromkeys(self.beats, now)

    def look(self, beats: Mapping[int, Beat], now: float) -> None:
        """Takes note of where ranks are."""
        for rank, beat in beats.items():
            if self.beats[rank] != beat:
                self.beats[rank], self._since[rank] = beat, now

    def silence(self, rank: int, now: float) -> float:
        """Seconds since a rank went on."""
        return now - self._since[rank]

    def stalled(self, running: Iterable[int], limits: Limits, now: float) -> list[int]:
        """The ranks that all others wait for, if each of these is beyond its limit; else none.

        A rank that waits for another one in a collective is at least as far as that one, because all run the same
        program. So the ranks that have come least far tell whether the run hangs, and their limit holds: the others
        may wait for them while they compile.
        """
        ranks = list(running)
        least = min((_progress(self.beats[rank]) for rank in ranks), default=None)
        behind = [rank for rank in ranks if _progress(self.beats[rank]) == least]
        beyond = all(self.silence(rank, now) > limits.of(self.beats[rank]) for rank in behind)
        return behind if beyond else []


@dataclass(frozen=True)
class Verdict:
    """Which rank the others wait for."""

    rank: int | None
    """None where evidence does not tell."""
    reason: str


def name_culprit(behind: list[int], beats: Mapping[int, Beat | None], traces: Mapping[int, Trace]) -> Verdict:
    """Who keeps the others waiting.

    Evidence, the strongest first: a process that is stopped or does not answer; a rank that has come less far than
    all others; of ranks at the same place, the one that is not in an operation of MindSpore, as all are that wait in a
    collective; then the one whose stack is like no other's.

    Args:
        behind: ranks that have come least far, see `Stillness.stalled`.
        beats: where every rank is.
        traces: state and stack of every rank that still runs.
    """
    silent = [rank for rank in traces if traces[rank].state in UNANSWERING or not traces[rank].frames]
    if len(silent) == 1 and beats.get(silent[0]) is not None:
        return Verdict(silent[0], f"its process is {traces[silent[0]].state} and does not answer")
    if len(behind) == 1:
        rank = behind[0]
        others = sorted({str(beats[other] or "not started") for other in traces if other != rank})
        waiting = f", while the others wait in {' and '.join(others)}" if others else ""
        return Verdict(rank, f"it is in {beats[rank] or 'no phase yet'}{waiting}")
    stacks = {rank: traces[rank] for rank in behind if rank in traces and traces[rank].frames}
    outside = [rank for rank, trace in stacks.items() if not trace.is_waiting]
    if len(outside) == 1 and len(stacks) > 1:
        return Verdict(outside[0], f"it is in no operation, while the others in {beats[outside[0]]} are")
    count = Counter(trace.frames for trace in stacks.values())
    odd = [rank for rank, trace in stacks.items() if count[trace.frames] == 1]
    if len(odd) == 1 and len(stacks) > 2:
        return Verdict(odd[0], f"its stack differs from those of the {len(stacks) - 1} other ranks in {beats[odd[0]]}")
    where = beats[behind[0]] or "no phase yet"
    return Verdict(None, f"{len(behind)} ranks are in {where}, and nothing tells them apart")


def _progress(beat: Beat | None) -> tuple[int, int]:
    return (-1, -1) if beat is None else beat.progress
