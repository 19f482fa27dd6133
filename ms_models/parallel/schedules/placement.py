"""Where sends and receives go between the computations of a table."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ms_models.parallel.schedules.actions import Action, Compute, Receive, Schedule, Send, Transfer
from ms_models.parallel.schedules.running import Costs, Span, Transport, run_table


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
    The order in which a run of the natural table does things is one. With interleaved chunks, tensors are ready in the
    middle of what the other side computes; then places that leave them time on the way may keep stages waiting less.
    """
    orders = [_as_run(natural, Costs(transfer=transfer)) for transfer in (0, 1)]
    return min(orders, key=lambda table: run_table(table, Transport.BLOCKING).length)


def _as_run(natural: Schedule, costs: Costs) -> Schedule:
    """The order of a run of a table; transfers are at the moment when they are sent."""
    timeline = run_table(natural, Transport.ASYNCHRONOUS, costs)
    assert timeline.fault is None, timeline.fault
    sent = {
        span.action.transfer: span.end for spans in timeline.stages for span in spans if isinstance(span.action, Send)
    }

    def moment(span: Span) -> tuple[float, int, str, int, int]:
        # Computations take time, so whatever ends at a moment had begun before: transfers come first.
        if isinstance(span.action, Compute):
            return span.start, 1, "", 0, 0
        transfer = span.action.transfer
        return sent[transfer], 0, transfer.payload, transfer.source, transfer.micro_batch

    return replace(
        natural, stages=tuple(tuple(span.action for span in sorted(spans, key=moment)) for spans in timeline.stages)
    )
