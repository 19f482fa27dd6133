"""Where sends and receives go between the computations of a table."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ms_models.parallel.schedules.actions import Action, Compute, Receive, Schedule, Send, Transfer
from ms_models.parallel.schedules.running import Costs, Transport, run_table


def place_transfers(table: Schedule, transport: Transport) -> Schedule:
    """A table of computations with the transfers they imply, placed for one transport."""
    natural = _at_once(table)
    return natural if transport is Transport.ASYNCHRONOUS else _in_one_order(natural)


def _at_once(table: Schedule) -> Schedule:
    """Sends right after their computation, receives right before theirs.

    A stage first receives whatever was sent to it before what it needs: without tags, order is all there is. Only with
    pp=2 and chunks do activations and gradients share a direction, so only there does this change anything.
    """
    arriving: dict[tuple[int, int], deque[Transfer]] = {}
    for stage in range(table.pp):
        for action in table.order(stage):
            if (transfer := table.gives(stage, action)) is not None:
                arriving.setdefault((stage, table.stage(transfer.target)), deque()).append(transfer)
    stages = []
    for stage in range(table.pp):
        actions: list[Action] = []
        received: set[Transfer] = set()
        for action in table.order(stage):
            needed = table.needs(stage, action)
            while needed is not None and needed not in received:
                transfer = arriving[table.stage(needed.source), stage].popleft()
                received.add(transfer)
                actions.append(Receive(transfer))
            actions.append(action)
            if (transfer := table.gives(stage, action)) is not None:
                actions.append(Send(transfer))
        stages.append(tuple(actions))
    return replace(table, stages=tuple(stages))


def _in_one_order(natural: Schedule) -> Schedule:
    """The same transfers where both sides wait for each other.

    There, the natural places deadlock: neighbours in 1F1B send to each other at the same time. No table can deadlock
    whose stages all follow one order of everything that happens anywhere: what comes first in it can always be done.
    That order is the one in which a run of the natural table does it.
    """
    timeline = run_table(natural, Transport.ASYNCHRONOUS, Costs())
    assert timeline.fault is None, timeline.fault
    moments = {
        span.action.transfer: span.end for spans in timeline.stages for span in spans if isinstance(span.action, Send)
    }
    stages = []
    for spans in timeline.stages:
        keyed = [
            # Computations take time, so whatever ends at a moment had begun before: transfers come first.
            ((span.start, 1, "", 0, 0), span.action)
            if isinstance(span.action, Compute)
            else (_rank(span.action.transfer, moments), span.action)
            for span in spans
        ]
        stages.append(tuple(action for _, action in sorted(keyed, key=lambda pair: pair[0])))
    return replace(natural, stages=tuple(stages))


def _rank(transfer: Transfer, moments: dict[Transfer, float]) -> tuple[float, int, str, int, int]:
    return moments[transfer], 0, transfer.payload.value, transfer.source, transfer.micro_batch
