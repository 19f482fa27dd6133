"""`run_table`: plays a table without any process, with given costs: when does what happen, or who waits for whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mappings.layout import ParallelLayout
from mappings.shards import chunks_of_stage
from ms_models.parallel.schedules.actions import Action, Compute, Kind, Receive, Schedule, Send, Transfer


class Transport(Enum):
    """How tensors cross between two stages. Nothing carries a tag: what arrives is told apart by its order alone."""

    ASYNCHRONOUS = "asynchronous"
    """A send returns at once, a receive waits. Per direction, tensors arrive as they were sent."""
    BLOCKING = "blocking"
    """Send and receive wait for each other."""
    ALL_REDUCE = "all_reduce"
    """As on the CPU: a sum over the pair of stages, whose receiver adds zeros. Both stages wait; calls of both
    directions share one order, and two sends that meet are added up without an error."""


@dataclass(frozen=True)
class Costs:
    """How long computations and transfers take, in any unit.

    A split backward may cost more than the whole one: both parts need the derivative of the chunk's activations.
    """

    forward: float = 1
    backward: float = 2
    backward_input: float = 1
    backward_weight: float = 1
    transfer: float = 0
    weights: tuple[float, ...] = ()
    """Per position in the model, what a computation there costs in relation to the others; empty: all the same."""

    @classmethod
    def of_layers(cls, layers: int, layout: ParallelLayout) -> Costs:
        """Costs per layer, where the layers of a model are cut by `layout`, evenly or not."""
        stages = [chunks_of_stage(layers, layout, stage) for stage in range(layout.pp)]
        return cls(weights=tuple(len(stage[chunk]) for chunk in range(layout.vpp) for stage in stages))

    def of(self, action: Compute, position: int) -> float:
        """The cost of one computation."""
        cost: float = getattr(self, action.kind.value)
        return cost * self.weights[position] if self.weights else cost


@dataclass(frozen=True)
class Fault:
    """Why a table does not work."""

    kind: str
    """One of `FAULT_KINDS` in `checks.py`."""
    message: str


@dataclass(frozen=True)
class Span:
    """When a stage was in an action, waiting included."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What happened when a table was played."""

    stages: tuple[tuple[Span, ...], ...]
    fault: Fault | None
    """Why it stopped early, if it did."""

    @property
    def length(self) -> float:
        """Time until the last stage has finished."""
        return max((span.end for spans in self.stages for span in spans), default=0)

    @property
    def bubble(self) -> float:
        """Share of all stages' time that is not spent in computations, of a run that came to its end."""
        spans = [span for stage in self.stages for span in stage if isinstance(span.action, Compute)]
        return 1 - sum(span.end - span.start for span in spans) / (len(self.stages) * self.length)


def run_table(schedule: Schedule, transport: Transport, costs: Costs | None = None) -> Timeline:
    """Plays a table. Whether it comes to an end does not depend on the costs."""
    player = _Player(schedule, transport, costs or Costs())
    while player.fault is None and any(player.advance(stage) for stage in range(schedule.pp)):
        pass
    return Timeline(tuple(tuple(spans) for spans in player.spans), player.fault or player.deadlock())


class _Player:
    def __init__(self, schedule: Schedule, transport: Transport, costs: Costs) -> None:
        self.schedule = schedule
        self.transport = transport
        self.costs = costs
        self.clocks: list[float] = [0] * schedule.pp
        self.spans: list[list[Span]] = [[] for _ in range(schedule.pp)]
        self.fault: Fault | None = None
        self._sent: dict[tuple[int, int], deque[tuple[Transfer, float]]] = {}
        asynchronous = transport is Transport.ASYNCHRONOUS
        self._cross: Callable[[int, Send | Receive], bool] = self._queued if asynchronous else self._met

    def advance(self, stage: int) -> bool:
        """Takes actions of one stage until it waits; whether there were any."""
        before = len(self.spans[stage])
        while self.fault is None and (action := self._next(stage)) is not None:
            if isinstance(action, Compute):
                cost = self.costs.of(action, self.schedule.position(stage, action.chunk))
                self._finish(stage, self.clocks[stage] + cost)
            elif not self._cross(stage, action):
                break
        return len(self.spans[stage]) > before

    def deadlock(self) -> Fault | None:
        """Who waits for whom, if anybody still does."""
        waiting = {stage: action for stage in range(self.schedule.pp) if (action := self._next(stage)) is not None}
        if not waiting:
            return None
        stage, chain = min(waiting), list[int]()
        while stage in waiting and stage not in chain:
            chain.append(stage)
            stage = self._partner(waiting[stage])
        if stage in waiting:
            chain = chain[chain.index(stage) :]
            parts = [f"stage {s} waits in {waiting[s]} for stage {self._partner(waiting[s])}" for s in chain]
            return Fault("deadlock", "; ".join(parts))
        return Fault("deadlock", f"stage {chain[-1]} waits in {waiting[chain[-1]]} for stage {stage}, which has ended")

    def _next(self, stage: int) -> Action | None:
        actions, done = self.schedule.stages[stage], len(self.spans[stage])
        return actions[done] if done < len(actions) else None

    def _partner(self, action: Action) -> int:
        assert not isinstance(action, Compute), "computations never wait"
        transfer = action.transfer
        return self.schedule.stage(transfer.target if isinstance(action, Send) else transfer.source)

    def _finish(self, stage: int, end: float) -> None:
        action = self._next(stage)
        assert action is not None
        self.spans[stage].append(Span(action, self.clocks[stage], end))
        self.clocks[stage] = end

    def _queued(self, stage: int, action: Send | Receive) -> bool:
        partner = self._partner(action)
        if isinstance(action, Send):
            queue = self._sent.setdefault((stage, partner), deque())
            queue.append((action.transfer, self.clocks[stage] + self.costs.transfer))
            self._finish(stage, self.clocks[stage])
            return True
        queue = self._sent.setdefault((partner, stage), deque())
        if not queue:
            return False
        transfer, arrival = queue.popleft()
        if transfer != action.transfer:
            self.fault = Fault("mismatch", f"stage {stage} is at {action}, but stage {partner} sent {transfer} first")
            return False
        self._finish(stage, max(self.clocks[stage], arrival))
        return True

    def _met(self, stage: int, action: Send | Receive) -> bool:
        partner = self._partner(action)
        other = self._next(partner)
        if other is None or isinstance(other, Compute) or self._partner(other) != stage:
            return False
        if type(other) is type(action) and self.transport is Transport.BLOCKING:
            return False
        if type(other) is type(action) or other.transfer != action.transfer:
            self.fault = Fault("mismatch", f"stage {stage} is at {action}, but stage {partner} is at {other}")
            return False
        end = max(self.clocks[stage], self.clocks[partner]) + self.costs.transfer
        self._finish(stage, end)
        self._finish(partner, end)
        return True


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """Per stage, the most inputs of chunks it holds at a time: from the forward to the end of the (weight) backward.

    Counted in chunks: one of vpp chunks is about 1 / vpp of what a stage without chunks holds for a micro-batch.
    """
    peaks = []
    for stage in range(schedule.pp):
        held = peak = 0
        for action in schedule.order(stage):
            held += action.kind is Kind.FORWARD
            peak = max(peak, held)
            held -= action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
        peaks.append(peak)
    return tuple(peaks)
