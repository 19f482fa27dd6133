"""`check_schedule`: whether a table is right, without running any process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from ms_models.parallel.schedules.actions import Action, Compute, Kind, Payload, Receive, Schedule, Send
from ms_models.parallel.schedules.running import Fault, Transport, run_table

FAULT_KINDS = ("missing", "duplicate", "foreign", "order", "mismatch", "deadlock")
SPLIT = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


def check_schedule(schedule: Schedule, transport: Transport) -> list[Fault]:
    """The faults of a table; none means that it can be run.

    The kinds: an action is `missing`, there more than once (`duplicate`), or none of this stage and model (`foreign`);
    it stands before what it needs (`order`); send and receive of different tensors meet (`mismatch`); stages wait for
    each other for ever (`deadlock`). The last two are looked for in a table that has none of the others.
    """
    faults = []
    for stage in range(schedule.pp):
        faults += [*_wrong_counts(schedule, stage), *_wrong_order(schedule, stage)]
    if not faults and (fault := run_table(schedule, transport).fault) is not None:
        faults.append(fault)
    return faults


def _wrong_counts(schedule: Schedule, stage: int) -> Iterator[Fault]:
    """Each micro-batch forward and backward once in each chunk, with one send and one receive for what crosses."""
    found = Counter(schedule.stages[stage])
    wanted = set(_wanted(schedule, stage, found))
    for action in sorted(wanted - found.keys(), key=str):
        yield Fault("missing", f"stage {stage} has no {action}")
    for action, count in found.items():
        if action not in wanted:
            yield Fault("foreign", f"stage {stage} has {action}, which is not its own or not needed")
        elif count > 1:
            yield Fault("duplicate", f"stage {stage} has {action} {count} times")


def _wanted(schedule: Schedule, stage: int, found: Counter[Action]) -> Iterator[Action]:
    """All that the micro-batches have to meet on a stage, whatever the table says."""
    for micro_batch, chunk in product(range(schedule.micro_batches), range(schedule.vpp)):
        is_split = any(found[Compute(kind, micro_batch, chunk)] for kind in SPLIT)
        for kind in (Kind.FORWARD, *(SPLIT if is_split else (Kind.BACKWARD,))):
            action = Compute(kind, micro_batch, chunk)
            yield action
            if (transfer := schedule.needs(stage, action)) is not None:
                yield Receive(transfer)
            if (transfer := schedule.gives(stage, action)) is not None:
                yield Send(transfer)


def _wrong_order(schedule: Schedule, stage: int) -> Iterator[Fault]:
    """Within a stage, every action after those whose result it uses."""
    actions = schedule.stages[stage]
    place = {action: index for index, action in reversed(list(enumerate(actions)))}
    for action in place:
        for needed in _used_by(schedule, stage, action):
            if place.get(needed, -1) > place[action]:
                yield Fault("order", f"stage {stage} has {action} before {needed}")


def _used_by(schedule: Schedule, stage: int, action: Action) -> Iterator[Action]:
    """Actions of the same stage that make what this one uses; those that the table lacks are reported as missing."""
    if isinstance(action, Compute):
        if (transfer := schedule.needs(stage, action)) is not None:
            yield Receive(transfer)
        if action.kind is Kind.BACKWARD_WEIGHT:
            yield Compute(Kind.BACKWARD_INPUT, action.micro_batch, action.chunk)
        elif action.kind is not Kind.FORWARD:
            yield Compute(Kind.FORWARD, action.micro_batch, action.chunk)
    elif isinstance(action, Send):
        is_activation = action.transfer.payload is Payload.ACTIVATION
        for kind in (Kind.FORWARD,) if is_activation else (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            yield Compute(kind, action.transfer.micro_batch, action.transfer.source // schedule.pp)
