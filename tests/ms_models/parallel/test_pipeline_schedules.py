"""Pipeline schedules: right for every size they take, and as good as the literature says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.parallel.schedules import build_schedule
from ms_models.parallel.schedules.actions import Compute
from ms_models.parallel.schedules.checks import check_schedule
from ms_models.parallel.schedules.orders import ORDERS, check_sizes
from ms_models.parallel.schedules.running import Costs, Transport, peak_activations, run_table


def fits(name: str, pp: int, vpp: int, micro_batches: int) -> bool:
    """Written out again from the rules in docs/parallel.md."""
    if name == "interleaved":
        return vpp > 1 and pp > 1 and micro_batches % pp == 0
    return vpp == 1 and micro_batches >= pp


def sizes(name: str, pp: int) -> Iterator[tuple[int, int]]:
    """vpp and numbers of micro-batches: the fewest, around multiples of the stages, and the most."""
    counts = {pp, pp + 1, 2 * pp - 1, 2 * pp, 32 // pp * pp, 32}
    for vpp, micro_batches in product(range(1, 5), sorted(counts)):
        if micro_batches <= 32 and fits(name, pp, vpp, micro_batches):
            yield vpp, micro_batches


def expected_length(name: str, pp: int, vpp: int, micro_batches: int) -> int:
    """Forward 1, backward 2 (1 + 1 if split) per chunk. Bubble: 1F1B 3 (pp - 1), ZB-H1 a third of it."""
    return 3 * micro_batches * vpp + (pp - 1) * (1 if name == "zero_bubble" else 3)


def expected_peaks(name: str, pp: int, vpp: int, micro_batches: int) -> list[int]:
    by_stage: Callable[[int], int] = {
        "gpipe": lambda stage: micro_batches,
        "1f1b": lambda stage: pp - stage,
        "interleaved": lambda stage: min(micro_batches * vpp, 2 * (pp - stage - 1) + (vpp - 1) * pp + 1),
        "zero_bubble": lambda stage: pp,
    }[name]
    return [by_stage(stage) for stage in range(pp)]


@pytest.mark.parametrize("pp", range(1, 9))
@pytest.mark.parametrize("name", ORDERS)
def test_tables_are_right_and_as_good_as_known(name: str, pp: int) -> None:
    for vpp, micro_batches in sizes(name, pp):
        case = f"{name} pp={pp} vpp={vpp} micro_batches={micro_batches}"
        layout = ParallelLayout(pp=pp, vpp=vpp)
        free = build_schedule(name, layout, micro_batches, Transport.ASYNCHRONOUS)
        assert check_schedule(free, Transport.ASYNCHRONOUS) == [], case
        assert run_table(free, Transport.ASYNCHRONOUS).length == expected_length(name, pp, vpp, micro_batches), case
        assert list(peak_activations(free)) == expected_peaks(name, pp, vpp, micro_batches), case
        tied = build_schedule(name, layout, micro_batches, Transport.BLOCKING)
        assert check_schedule(tied, Transport.BLOCKING) == [], case
        assert run_table(tied, Transport.ALL_REDUCE).fault is None, case
        assert [tied.order(stage) for stage in range(pp)] == [free.order(stage) for stage in range(pp)], case


@pytest.mark.parametrize(("pp", "micro_batches"), [(1, 1), (2, 2), (2, 7), (4, 4), (4, 16), (5, 30), (8, 32)])
def test_bubbles_follow_the_formulas(pp: int, micro_batches: int) -> None:
    for name, vpp in [("gpipe", 1), ("1f1b", 1), *(("interleaved", vpp) for vpp in (2, 3, 4))]:
        if fits(name, pp, vpp, micro_batches):
            schedule = build_schedule(name, ParallelLayout(pp=pp, vpp=vpp), micro_batches, Transport.ASYNCHRONOUS)
            idle = Fraction(pp - 1, vpp)  # in micro-batches: dividing a stage in chunks divides the bubble
            bubble = run_table(schedule, Transport.ASYNCHRONOUS).bubble
            assert bubble == pytest.approx(float(idle / (micro_batches + idle)), abs=1e-12), (name, vpp)


def test_zero_bubble_pays_as_long_as_splitting_costs_little() -> None:
    for pp, micro_batches in ((2, 8), (4, 8), (4, 16), (8, 32)):
        assert length("zero_bubble", pp, micro_batches, Costs()) < length("1f1b", pp, micro_batches, Costs())
    # Where both parts compute the forward again, every micro-batch costs one forward more.
    again = Costs(backward=3, backward_input=2, backward_weight=2)
    for pp in range(2, 9):
        for micro_batches in (pp, 2 * pp, 3 * pp):
            lost = length("zero_bubble", pp, micro_batches, again) - length("1f1b", pp, micro_batches, again)
            assert lost == micro_batches - 2 * (pp - 1), (pp, micro_batches)


def length(name: str, pp: int, micro_batches: int, costs: Costs) -> float:
    """Duration of a step where no transfer keeps anybody waiting."""
    schedule = build_schedule(name, ParallelLayout(pp=pp), micro_batches, Transport.ASYNCHRONOUS)
    return run_table(schedule, Transport.ASYNCHRONOUS, costs).length


def test_lockstep_costs_nothing_without_chunks_and_no_more_than_the_gain_with_them() -> None:
    """Interleaved stages wait for each other where a tensor is ready in the middle of the other side's computation."""
    for name, pp in product(ORDERS, range(2, 9)):
        vpp = 2 if name == "interleaved" else 1
        layout = ParallelLayout(pp=pp, vpp=vpp)
        taken = run_table(build_schedule(name, layout, 3 * pp, Transport.BLOCKING), Transport.BLOCKING).length
        best = expected_length(name, pp, vpp, 3 * pp)
        if vpp == 1:
            assert taken == best, (name, pp)
        else:
            # A chunk is half a stage, so two lengths of 1F1B. With pp=2 nothing is gained.
            assert best <= taken <= 2 * expected_length("1f1b", pp, 1, 3 * pp) - (pp > 2), (name, pp)


def test_costs_follow_uneven_layers() -> None:
    """5 layers in 2 x 2 chunks: 2, 1, 1, 1; stage 0 has three of them and sets the pace."""
    layout = ParallelLayout(pp=2, vpp=2)
    costs = Costs.of_layers(5, layout)
    assert costs.weights == (2, 1, 1, 1)
    timeline = run_table(build_schedule("interleaved", layout, 4, Transport.BLOCKING), Transport.BLOCKING, costs)
    busy = [sum(s.end - s.start for s in spans if isinstance(s.action, Compute)) for spans in timeline.stages]
    assert busy == [4 * 3 * 3, 4 * 2 * 3]
    assert timeline.length > max(busy)


def test_transfers_take_their_time() -> None:
    """One micro-batch through two stages: forward, transfer, forward and backward, transfer, backward."""
    schedule = build_schedule("gpipe", ParallelLayout(pp=2), 2, Transport.ALL_REDUCE)
    one = replace(
        schedule, micro_batches=1, stages=tuple(tuple(a for a in s if a.micro_batch == 0) for s in schedule.stages)
    )
    for transport in Transport:
        assert check_schedule(one, transport) == []
        assert run_table(one, transport, Costs(transfer=0.5)).length == 1 + 0.5 + 3 + 0.5 + 2


@pytest.mark.parametrize(
    ("name", "layout", "micro_batches", "message"),
    [
        ("1f1c", ParallelLayout(pp=2), 4, "unknown schedule '1f1c'; known are gpipe, 1f1b, interleaved, zero_bubble"),
        (
            "1f1b",
            ParallelLayout(pp=4),
            3,
            "3 micro-batches are fewer than the pp=4 stages; micro_batches=4 would fit, so would pp=3",
        ),
        ("gpipe", ParallelLayout(pp=2), 0, "micro_batches=2 would fit"),
        (
            "interleaved",
            ParallelLayout(pp=4, vpp=2),
            10,
            "found 10; micro_batches=8 or 12 would fit, or 1f1b with vpp=1",
        ),
        ("interleaved", ParallelLayout(pp=4), 8, "vpp of at least 2"),
        ("zero_bubble", ParallelLayout(pp=2, vpp=2), 8, "one chunk per stage, found vpp=2; use interleaved, or vpp=1"),
    ],
)
def test_impossible_sizes_are_refused_with_sizes_that_fit(
    name: str, layout: ParallelLayout, micro_batches: int, message: str
) -> None:
    with pytest.raises(UserError) as error:
        build_schedule(name, layout, micro_batches, Transport.BLOCKING)
    assert message in str(error.value)


def test_sizes_are_taken_or_refused_as_documented() -> None:
    for name, pp, vpp, count in product(ORDERS, range(1, 9), range(1, 5), range(1, 33)):
        if vpp > 1 and pp == 1:
            continue  # refused by the layout
        try:
            check_sizes(name, ParallelLayout(pp=pp, vpp=vpp), count)
        except UserError:
            assert not fits(name, pp, vpp, count), (name, pp, vpp, count)
        else:
            assert fits(name, pp, vpp, count), (name, pp, vpp, count)


def test_schedules_need_no_mindspore() -> None:
    code = "import sys, ms_models.parallel.schedules.checks; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_guide_is_right() -> None:
    """Its example runs, its figures are those of the simulation."""
    guide = (Path(__file__).parents[3] / "docs" / "parallel.md").read_text(encoding="utf-8")
    exec(guide.split("```python")[1].split("```")[0], {})
    labels = {"`gpipe`, `1f1b`": ("gpipe", 1), "`zero_bubble`": ("zero_bubble", 1)}
    labels |= {f"`interleaved`, vpp={vpp}": ("interleaved", vpp) for vpp in (2, 4)}
    for label, (name, vpp) in labels.items():
        cells = []
        for pp, micro_batches in ((2, 8), (4, 16), (8, 32)):
            layout = ParallelLayout(pp=pp, vpp=vpp)
            free, tied = (
                run_table(build_schedule(name, layout, micro_batches, transport), transport).bubble
                for transport in (Transport.ASYNCHRONOUS, Transport.ALL_REDUCE)
            )
            cells.append(f"{free:.1%} / {tied:.1%}".replace("% /", " /").replace("%", " %"))
        assert f"| {label} | {' | '.join(cells)} |" in guide
