"""The order of a stage's computations under each schedule, and the sizes each schedule takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, zip_longest

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.parallel.schedules.actions import Compute, Kind, Order


def gpipe(pp: int, vpp: int, micro_batches: int, stage: int) -> Order:
    """All forwards, then all backwards (Huang et al. 2019): the simplest one, holds every micro-batch."""
    forwards = [Compute(Kind.FORWARD, micro_batch) for micro_batch in range(micro_batches)]
    return (*forwards, *(Compute(Kind.BACKWARD, micro_batch) for micro_batch in range(micro_batches)))


def one_forward_one_backward(pp: int, vpp: int, micro_batches: int, stage: int) -> Order:
    """1F1B (Narayanan et al. 2019): as long as GPipe, but a stage holds at most pp - stage micro-batches."""
    forwards = [Compute(Kind.FORWARD, micro_batch) for micro_batch in range(micro_batches)]
    backwards = [Compute(Kind.BACKWARD, micro_batch) for micro_batch in range(micro_batches)]
    return _alternating(forwards, backwards, pp - stage - 1)


def interleaved(pp: int, vpp: int, micro_batches: int, stage: int) -> Order:
    """Interleaved 1F1B (Narayanan et al. 2021): vpp chunks per stage divide the bubble by vpp.

    Groups of pp micro-batches pass through all chunks of a stage before the next group starts.
    """
    work = [
        (first + offset, chunk) for first in range(0, micro_batches, pp) for chunk in range(vpp) for offset in range(pp)
    ]
    forwards = [Compute(Kind.FORWARD, micro_batch, chunk) for micro_batch, chunk in work]
    backwards = [Compute(Kind.BACKWARD, micro_batch, vpp - 1 - chunk) for micro_batch, chunk in work]
    return _alternating(forwards, backwards, 2 * (pp - stage - 1) + (vpp - 1) * pp)


def zero_bubble(pp: int, vpp: int, micro_batches: int, stage: int) -> Order:
    """ZB-H1 (Qi et al. 2023): 1F1B whose backward is split, weight gradients fill what would be idle time.

    Stage s puts its weight gradients off by s micro-batches, so that every stage holds at most pp of them.
    """
    order: list[Compute] = []
    weights = 0
    for action in one_forward_one_backward(pp, vpp, micro_batches, stage):
        if action.kind is Kind.FORWARD:
            order.append(action)
            continue
        order.append(Compute(Kind.BACKWARD_INPUT, action.micro_batch))
        if action.micro_batch >= stage:
            order.append(Compute(Kind.BACKWARD_WEIGHT, weights))
            weights += 1
    order += [Compute(Kind.BACKWARD_WEIGHT, micro_batch) for micro_batch in range(weights, micro_batches)]
    return tuple(order)


def _alternating(forwards: list[Compute], backwards: list[Compute], warm_up: int) -> Order:
    """`warm_up` forwards, then one forward and one backward in turn until both are used up."""
    pairs = zip_longest(forwards[warm_up:], backwards)
    steady = (action for action in chain.from_iterable(pairs) if action is not None)
    return (*forwards[:warm_up], *steady)


ORDERS: dict[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
}


def check_sizes(name: str, layout: ParallelLayout, micro_batches: int) -> None:
    """Refuses sizes that a schedule cannot be made for, before anything starts.

    Layers need not divide: `mappings.shards` deals uneven chunks and refuses fewer layers than chunks.

    Raises:
        UserError: names the sizes that clash and sizes that would fit.
    """
    pp, vpp = layout.pp, layout.vpp
    if name not in ORDERS:
        raise UserError(f"schedule: unknown schedule {name!r}; known are {', '.join(ORDERS)}")
    if name == "interleaved" and vpp == 1:
        raise UserError("schedule: interleaved needs vpp of at least 2 (and pp of at least 2); with vpp=1 use 1f1b")
    if name != "interleaved" and vpp > 1:
        raise UserError(f"schedule: {name} has one chunk per stage, found vpp={vpp}; use interleaved, or vpp=1")
    if micro_batches < pp:
        more = f"micro_batches={pp} would fit"
        fewer = f", so would pp={micro_batches}" if micro_batches > 0 else ""
        raise UserError(f"schedule: {micro_batches} micro-batches are fewer than the pp={pp} stages; {more}{fewer}")
    if name == "interleaved" and micro_batches % pp:
        below = micro_batches // pp * pp
        raise UserError(
            f"schedule: interleaved needs micro-batches that pp={pp} divides, found {micro_batches}; "
            f"micro_batches={below} or {below + pp} would fit, or 1f1b with vpp=1"
        )
