"""`search`: layouts of a job, the fastest that fits first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mappings.parallel_options import MICRO_BATCHES_PER_STAGE, RECOMPUTE
from migrate.plan.candidates import Candidates, Refusals
from migrate.plan.engine import MSMIGRATE, Engine
from migrate.plan.hardware import Hardware
from migrate.plan.job import GIB, Choice, Job
from migrate.plan.memory import RankMemory, memory
from migrate.plan.shapes import ModelShapes
from migrate.plan.timing import StepTime, peak_tflops, step_time
from migrate.plan.widths import LayerWidths
from migrate.plan.work import useful_flops_per_token

Axes = tuple[int, int, int, int]
"""(tp, cp, pp, ep): what tells layouts of a job apart."""
TOLD_APART = 0.05
"""Times closer than this are not told apart: the model is of first order."""
TOO_LARGE = "does not fit into the memory of a device"


@dataclass(frozen=True)
class Planned:
    """One way to do the job that fits."""

    choice: Choice
    memory: RankMemory
    time: StepTime

    @property
    def is_short_of_micro_batches(self) -> bool:
        """Whether the stages of its pipeline have so few that a dry run warns of it (R101)."""
        pp = self.choice.layout.pp
        return pp > 1 and self.choice.micro_batches < MICRO_BATCHES_PER_STAGE * pp

    @property
    def axes(self) -> Axes:
        """See `Axes`."""
        layout = self.choice.layout
        return layout.tp, layout.cp, layout.pp, layout.ep


@dataclass
class Plan:
    """What came out."""

    job: Job
    shapes: ModelShapes
    engine: Engine
    hardware: Hardware
    ranked: list[Planned] = field(default_factory=list)
    """The best of each layout, the fastest first; of those that are about as fast, the simplest."""
    variants: dict[Axes, dict[int, Planned]] = field(default_factory=dict)
    """For each layout, the best for each micro-batch size that fits."""
    smallest: dict[Axes, int] = field(default_factory=dict)
    """For each layout that was looked at, the least memory any policy needs, bytes."""
    refused: Refusals = field(default_factory=Refusals)
    looked_at: int = 0
    """Combinations of layout, schedule, ZeRO stage and micro-batch."""
    widths: dict[int, LayerWidths] = field(default_factory=dict)
    """By kind of layer."""
    useful_flops: float = 0.0
    """Of one step."""

    def by_recompute(self, planned: Planned) -> dict[str, RankMemory]:
        """Memory of a layout under each recompute policy; of ZeRO 3, which computes layers again anyway, under one."""
        policies = ("none",) if planned.choice.layout.zero == 3 else RECOMPUTE
        return {
            policy: memory(self.shapes, self.widths, replace(planned.choice, recompute=policy), self.job, self.engine)
            for policy in policies
        }

    def mfu(self, time: StepTime) -> float:
        """Useful operations over what the devices could do at their peak."""
        peak = peak_tflops(self.hardware, self.job.precision) * 1e12
        return self.useful_flops / (time.total * self.job.devices * peak)


def search(
    shapes: ModelShapes,
    job: Job,
    hardware: Hardware,
    engine: Engine = MSMIGRATE,
    *,
    choices: Iterable[Choice] | None = None,
) -> Plan:
    """Evaluates candidates and ranks them by the time of a step.

    Of the recompute policies, a candidate takes the first that fits: each needs less memory and more time than the one
    before.

    Args:
        shapes: of the model.
        job: what is planned.
        hardware: speeds.
        engine: the training program.
        choices: candidates to look at instead of all.
    """
    plan = Plan(job, shapes, engine, hardware)
    widths = plan.widths = {kind: LayerWidths.of(shapes, kind) for kind in set(shapes.kind_of_layer)}
    plan.useful_flops = useful_flops_per_token(shapes, widths, job.seq_length) * job.seq_length * job.global_batch
    candidates = Candidates(shapes, job)
    for choice in candidates if choices is None else choices:
        plan.looked_at += 1
        _consider(plan, widths, choice, fixed=choices is not None)
    plan.refused.counts.update(candidates.refused.counts)
    plan.refused.examples.update(candidates.refused.examples)
    best = [min(found.values(), key=_order) for found in plan.variants.values()]
    fastest = min((one.time.total for one in best), default=1.0)
    plan.ranked = sorted(best, key=lambda one: _rank(one, fastest))
    return plan


def _rank(planned: Planned, fastest: float) -> tuple[int, int, float]:
    """Times in steps of `TOLD_APART`; of equal ones, the layout that cuts less comes first."""
    layout = planned.choice.layout
    level = int(math.log(planned.time.total / fastest) / math.log(1 + TOLD_APART))
    return level, layout.tp * layout.cp * layout.pp, planned.time.total


def _order(planned: Planned) -> tuple[float, int]:
    return planned.time.total, planned.memory.total


def _consider(plan: Plan, widths: dict[int, LayerWidths], choice: Choice, *, fixed: bool) -> None:
    job = plan.job
    least, always = None, 0
    policies = _policies(choice, job, fixed)
    for policy in policies:
        if always > job.usable and policy != policies[-1]:
            continue  # no policy makes weights, gradients and states smaller; the last one says what is the least
        tried = replace(choice, recompute=policy)
        needed = memory(plan.shapes, widths, tried, job, plan.engine)
        always = needed.weights + needed.gradients + needed.optimizer
        least = needed.total if least is None else min(least, needed.total)
        if needed.total <= job.usable:
            planned = Planned(tried, needed, step_time(plan.shapes, widths, tried, job, plan.engine, plan.hardware))
            found = plan.variants.setdefault(planned.axes, {})
            held = found.get(choice.micro_batch)
            if held is None or _order(planned) < _order(held):
                found[choice.micro_batch] = planned
            break
    else:
        assert least is not None
        plan.refused.add(
            TOO_LARGE, f"{choice.layout}: {least / GIB:.1f} GiB with a micro-batch of {choice.micro_batch}"
        )
    layout = choice.layout
    axes = layout.tp, layout.cp, layout.pp, layout.ep
    if least is not None:
        plan.smallest[axes] = min(plan.smallest.get(axes, least), least)


def _policies(choice: Choice, job: Job, fixed: bool) -> tuple[str, ...]:
    if fixed:
        return (choice.recompute,)
    if choice.layout.zero == 3:
        return ("none",)
    return (job.recompute,) if job.recompute is not None else RECOMPUTE
