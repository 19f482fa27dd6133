"""Negative controls: planted faults in pipeline tables are found and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from mappings.layout import ParallelLayout
from ms_models.parallel.schedules import build_schedule
from ms_models.parallel.schedules.actions import Action, Compute, Kind, Payload, Receive, Schedule, Send, Transfer
from ms_models.parallel.schedules.checks import FAULT_KINDS, check_schedule
from ms_models.parallel.schedules.orders import ORDERS
from ms_models.parallel.schedules.running import Transport, run_table

FORWARD, BACKWARD = Kind.FORWARD, Kind.BACKWARD
Edit = Callable[[list[Action]], object]


def edited(schedule: Schedule, stage: int, edit: Edit) -> Schedule:
    actions = list(schedule.stages[stage])
    edit(actions)
    return replace(schedule, stages=(*schedule.stages[:stage], tuple(actions), *schedule.stages[stage + 1 :]))


def swap(first: Action, second: Action) -> Edit:
    def edit(actions: list[Action]) -> None:
        i, j = actions.index(first), actions.index(second)
        actions[i], actions[j] = second, first

    return edit


def drop(action: Action) -> Edit:
    return lambda actions: actions.remove(action)


def twice(action: Action) -> Edit:
    return lambda actions: actions.insert(actions.index(action), action)


def activation(micro_batch: int, source: int) -> Transfer:
    return Transfer(Payload.ACTIVATION, micro_batch, source, source + 1)


def gradient(micro_batch: int, source: int) -> Transfer:
    return Transfer(Payload.GRADIENT, micro_batch, source, source - 1)


@pytest.fixture
def table() -> Schedule:
    """1F1B with 4 micro-batches on 3 stages."""
    return build_schedule("1f1b", ParallelLayout(pp=3), 4, Transport.BLOCKING)


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize(
    ("stage", "edit", "kind", "message"),
    [
        (
            2,
            swap(Compute(FORWARD, 1), Compute(BACKWARD, 1)),
            "order",
            "stage 2 has backward(1, chunk 0) before forward(1",
        ),
        (
            1,
            swap(Receive(activation(2, 0)), Compute(FORWARD, 2)),
            "order",
            "before receive activation(2, position 0 to 1)",
        ),
        (
            1,
            swap(Send(activation(2, 1)), Compute(FORWARD, 2)),
            "order",
            "has send activation(2, position 1 to 2) before f",
        ),
        (1, drop(Receive(activation(2, 0))), "missing", "stage 1 has no receive activation(2, position 0 to 1)"),
        (1, drop(Send(gradient(3, 1))), "missing", "stage 1 has no send gradient(3, position 1 to 0)"),
        (0, drop(Compute(FORWARD, 3)), "missing", "stage 0 has no forward(3, chunk 0)"),
        (0, drop(Compute(BACKWARD, 3)), "missing", "stage 0 has no backward(3, chunk 0)"),
        (0, twice(Compute(BACKWARD, 2)), "duplicate", "stage 0 has backward(2, chunk 0) 2 times"),
        (0, twice(Send(activation(1, 0))), "duplicate", "stage 0 has send activation(1, position 0 to 1) 2 times"),
        (0, lambda a: a.append(Compute(FORWARD, 4)), "foreign", "stage 0 has forward(4, chunk 0)"),
        (0, lambda a: a.append(Compute(FORWARD, 0, 1)), "foreign", "stage 0 has forward(0, chunk 1)"),
        (0, lambda a: a.append(Compute(Kind.BACKWARD_WEIGHT, 1)), "foreign", "stage 0 has backward(1, chunk 0)"),
    ],
)
def test_planted_faults_are_named(
    table: Schedule, transport: Transport, stage: int, edit: Edit, kind: str, message: str
) -> None:
    faults = check_schedule(edited(table, stage, edit), transport)
    assert any(fault.kind == kind and message in fault.message for fault in faults), faults
    assert all(fault.kind in FAULT_KINDS for fault in faults)


def test_what_is_sent_in_another_order_is_a_mismatch(table: Schedule) -> None:
    """Nothing carries a tag: the second stage would take one micro-batch for another."""
    for actions in (
        swap(Send(activation(0, 0)), Send(activation(1, 0))),
        swap(Compute(FORWARD, 0), Compute(FORWARD, 1)),
    ):
        table = edited(table, 0, actions)
    for transport in Transport:
        [fault] = check_schedule(table, transport)
        assert fault.kind == "mismatch"
        assert "receive activation(0, position 0 to 1)" in fault.message
        assert "activation(1, position 0 to 1)" in fault.message


@pytest.mark.parametrize("transport", Transport)
def test_a_cycle_between_stages_is_a_deadlock(transport: Transport) -> None:
    """Stage 1 wants all forwards first, stage 0 will not send the second before a gradient is back."""
    table = build_schedule("gpipe", ParallelLayout(pp=2), 2, transport)
    stuck = edited(table, 0, lambda actions: actions.sort(key=lambda action: action.micro_batch))
    [fault] = check_schedule(stuck, transport)
    # Under AllReduce the calls of both sides meet all the same, and exchange the wrong tensors.
    assert fault.kind == ("mismatch" if transport is Transport.ALL_REDUCE else "deadlock")
    assert "receive gradient(0, position 1 to 0)" in fault.message
    assert "receive activation(1, position 0 to 1)" in fault.message


def test_sends_at_once_deadlock_where_both_sides_wait() -> None:
    """The natural places of 1F1B: neighbours send to each other at the same time."""
    natural = build_schedule("1f1b", ParallelLayout(pp=2), 4, Transport.ASYNCHRONOUS)
    assert check_schedule(natural, Transport.ASYNCHRONOUS) == []
    [fault] = check_schedule(natural, Transport.BLOCKING)
    assert fault.kind == "deadlock"
    assert "stage 0 waits in send activation(1" in fault.message
    assert "stage 1 waits in send gradient(0" in fault.message
    [fault] = check_schedule(natural, Transport.ALL_REDUCE)
    assert fault.kind == "mismatch"  # the sum of an activation and a gradient, on both sides
    assert "send activation(1" in fault.message
    assert "send gradient(0" in fault.message


@pytest.mark.parametrize("transport", [Transport.BLOCKING, Transport.ASYNCHRONOUS])
def test_a_longer_cycle_names_every_stage(transport: Transport) -> None:
    """Stage 0 wants its second chunk first, whose input comes around the ring from its own first chunk."""
    table = build_schedule("interleaved", ParallelLayout(pp=3, vpp=2), 3, transport)
    early: list[Action] = [Receive(activation(0, 2)), Compute(FORWARD, 0, 1)]
    [fault] = check_schedule(edited(table, 0, lambda a: a.sort(key=lambda x: x not in early)), transport)
    assert fault.kind == "deadlock"
    for stage in range(3):
        assert f"stage {stage} waits in receive activation(0, position" in fault.message


def test_a_partner_that_has_ended_is_named() -> None:
    """Not reachable through `check_schedule`, which reports the missing receive, but `run_table` must not hang."""
    table = build_schedule("gpipe", ParallelLayout(pp=2), 2, Transport.BLOCKING)
    fault = run_table(edited(table, 1, lambda a: a.clear()), Transport.BLOCKING).fault
    assert fault is not None
    assert fault.message == "stage 0 waits in send activation(0, position 0 to 1) for stage 1, which has ended"


@pytest.mark.parametrize("name", ORDERS)
def test_no_swap_of_neighbours_fools_the_checker(name: str) -> None:
    """Every swap of two neighbouring actions is a fault, or leaves a table that an independent replay accepts."""
    vpp = 2 if name == "interleaved" else 1
    for transport in Transport:
        table = build_schedule(name, ParallelLayout(pp=2, vpp=vpp), 4, transport)
        found = 0
        for stage in range(2):
            for action, following in pairwise(table.stages[stage]):
                swapped = edited(table, stage, swap(action, following))
                faults = check_schedule(swapped, transport)
                assert bool(faults) != can_be_replayed(swapped, transport), (stage, str(action), str(following), faults)
                found += bool(faults)
        assert found


def can_be_replayed(table: Schedule, transport: Transport) -> bool:
    """Plays a table with the tensors themselves, as far as it goes: written apart from the checker.

    A stage holds the tensors that it computed or received; whoever needs another one stops the replay.
    """
    wires: dict[tuple[int, int], list[Transfer]] = {}
    held: list[set[object]] = [set() for _ in range(table.pp)]
    left = [list(actions) for actions in table.stages]

    def other(action: Send | Receive) -> int:
        return (action.transfer.target if isinstance(action, Send) else action.transfer.source) % table.pp

    def possible(stage: int, action: Compute) -> bool:
        needed: list[object] = [] if table.needs(stage, action) is None else [table.needs(stage, action)]
        if action.kind is Kind.BACKWARD_WEIGHT:
            needed.append(Compute(Kind.BACKWARD_INPUT, action.micro_batch, action.chunk))
        elif action.kind is not FORWARD:
            needed.append(Compute(FORWARD, action.micro_batch, action.chunk))
        return held[stage].issuperset(needed)

    moved = True
    while moved:
        moved = False
        for stage, actions in enumerate(left):
            if not actions:
                continue
            action = actions[0]
            if isinstance(action, Compute):
                if not possible(stage, action):
                    return False
                held[stage] |= {action, table.gives(stage, action)}
            elif isinstance(action, Send) and action.transfer not in held[stage]:
                return False
            elif transport is Transport.ASYNCHRONOUS:
                if isinstance(action, Send):
                    wires.setdefault((stage, other(action)), []).append(action.transfer)
                else:
                    wire = wires.get((other(action), stage), [])
                    if not wire:
                        continue
                    if wire.pop(0) != action.transfer:
                        return False
                    held[stage].add(action.transfer)
            else:
                facing = left[other(action)][:1]
                opposite = Receive(action.transfer) if isinstance(action, Send) else Send(action.transfer)
                if facing != [opposite] or (isinstance(action, Receive) and action.transfer not in held[other(action)]):
                    continue
                held[stage].add(action.transfer)
                held[other(action)].add(action.transfer)
                left[other(action)].pop(0)
            actions.pop(0)
            moved = True
    return not any(left)
