"""Why layouts are ranked as they are, in sentences with the figures that decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from migrate.plan.job import GIB
from migrate.plan.memory import memory
from migrate.plan.search import Plan, Planned

AXES = ("tp", "cp", "pp", "ep")
ROLES = {
    "tp": "tensor parallel inside the node",
    "cp": "sequences shared",
    "pp": "layers in stages",
    "ep": "experts shared",
}
DIVIDED = {1: "optimizer states", 2: "optimizer states and gradients", 3: "states, gradients and parameters"}
MUCH_COMMUNICATION = 0.25
"""Share of a step above which another layout, a larger micro-batch or faster links are worth a look (T6)."""


def why_best(plan: Plan, best: Planned) -> list[str]:
    """Reasons for the layout on top."""
    lines = [*_axes(plan, best), *_policies(plan, best)]
    layout, m = best.choice.layout, best.choice.micro_batches
    if best.is_short_of_micro_batches:
        lines.append(
            f"{m} micro-batches for {layout.pp} stages are few: stages idle {100 * best.time.bubble:.0f} % of the "
            "step; a larger global batch or fewer stages would help "
            "(a dry run warns of it: R101)"
        )
    if (share := best.time.communication / best.time.total) > MUCH_COMMUNICATION:
        axis, seconds = max(vars(best.time.seconds).items(), key=lambda item: item[1])
        lines.append(f"communication takes {100 * share:.0f} % of the step, most of it on {axis} ({seconds:.2f} s)")
    return lines


def why_behind(best: Planned, other: Planned) -> str:
    """What a layout loses to the one on top, in a few words."""
    parts = {
        "recompute": other.time.recompute - best.time.recompute,
        "idle stages": other.time.idle - best.time.idle,
        "compute": other.time.compute - best.time.compute,
        **{f"{axis} traffic": getattr(other.time.seconds, axis) - seconds
           for axis, seconds in vars(best.time.seconds).items()},
    }  # fmt: skip
    name, seconds = max(parts.items(), key=lambda item: item[1])
    slower = 100 * (other.time.total / best.time.total - 1)
    if slower < 0:
        return f"{-slower:.0f} % faster by this estimate, but more axes"
    return f"{slower:.0f} % slower, mostly {name} (+{seconds:.2f} s)"


def _axes(plan: Plan, best: Planned) -> Iterator[str]:
    sizes = dict(zip(AXES, best.axes, strict=True))
    if not any(size > 1 for size in sizes.values()):
        yield "no axis but dp: everything a rank holds fits into one device, and only gradients and weights cross"
    for number, axis in enumerate(AXES):
        size = sizes[axis]
        if size == 1:
            continue
        head = f"{axis}={size} ({ROLES[axis]})"
        fewer = [one for one in plan.ranked if one.axes[number] < size]
        if fewer:
            yield f"{head}: the best layout with less, {fewer[0].choice.layout}, takes {_longer(best, fewer[0])}"
            continue
        needs = [least for axes, least in plan.smallest.items() if axes[number] < size]
        if needs:
            yield f"{head}: with less, nothing fits; {min(needs) / GIB:.1f} GiB is the least any policy needs"
        else:
            yield f"{head}: there was no candidate with less"


def _policies(plan: Plan, best: Planned) -> Iterator[str]:
    choice = best.choice
    widths = plan.widths
    limit = plan.job.usable / GIB
    if choice.layout.zero:
        kept = replace(choice, layout=replace(choice.layout, zero=0))
        without = memory(plan.shapes, widths, kept, plan.job, plan.engine).total / GIB
        what = DIVIDED[choice.layout.zero]
        yield f"zero={choice.layout.zero}: {what} divided over dp; without it {without:.1f} GiB"
    if choice.recompute != "none":
        without = memory(plan.shapes, widths, replace(choice, recompute="none"), plan.job, plan.engine).total / GIB
        yield f"recompute {choice.recompute}: with none {without:.1f} GiB, of {limit:.1f} usable"
    if choice.sequence_parallel:
        without = memory(plan.shapes, widths, replace(choice, sequence_parallel=False), plan.job, plan.engine).total
        yield f"sequence parallel: the same bytes cross, without it {without / GIB:.1f} GiB"


def _longer(best: Planned, other: Planned) -> str:
    change = 100 * (other.time.total / best.time.total - 1)
    return f"{change:.0f} % longer" if change >= 0 else f"{-change:.0f} % less, within what this estimate can tell"
