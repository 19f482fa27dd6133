"""`step_time`: how long a step of a layout takes, and where that time goes. First order: nothing overlaps."""

from __future__ import annotations

from dataclasses import dataclass

from migrate.plan.communication import Traffic, between_replicas, between_stages, forward_passes, per_micro_batch
from migrate.plan.engine import Engine
from migrate.plan.hardware import Hardware
from migrate.plan.in_flight import PassCosts, idle
from migrate.plan.job import Choice, Job
from migrate.plan.shapes import ModelShapes, StageContents
from migrate.plan.widths import LayerWidths
from migrate.plan.work import head_flops, layer_flops

FP32_COST = 2.0
"""Assumed: products of fp32 numbers take at least twice as long as those of 16 bits."""


@dataclass(frozen=True)
class StepTime:
    """Of the slowest stage, seconds per step."""

    compute: float
    """First forward passes and gradients."""
    recompute: float
    """Forward passes after the first one."""
    idle: float
    seconds: Traffic
    """Communication on each axis."""
    sent: Traffic
    """Bytes per rank and step on each axis."""

    @property
    def communication(self) -> float:
        """Seconds of all axes."""
        return self.seconds.total

    @property
    def total(self) -> float:
        """The step."""
        return self.compute + self.recompute + self.idle + self.communication

    @property
    def bubble(self) -> float:
        """Share of the step in which the stage waits for others."""
        return self.idle / self.total


def peak_tflops(hardware: Hardware, precision: str) -> float:
    """Peak of a device in the format of the computation, TFLOP/s."""
    return hardware.peak_tflops / (FP32_COST if precision == "fp32" else 1.0)


def step_time(
    shapes: ModelShapes, widths: dict[int, LayerWidths], choice: Choice, job: Job, engine: Engine, hardware: Hardware
) -> StepTime:
    """Time of a step.

    A backward pass takes as long as two forward passes; layers are computed as often as the policy and the pipeline ask
    for.
    """
    found = [
        _of_stage(shapes, widths, choice, job, engine, hardware, contents)
        for _, contents in shapes.stages(choice.layout)
    ]
    return max(found, key=lambda one: one.total)


def _of_stage(
    shapes: ModelShapes,
    widths: dict[int, LayerWidths],
    choice: Choice,
    job: Job,
    engine: Engine,
    hardware: Hardware,
    contents: StageContents,
) -> StepTime:
    layout, m = choice.layout, choice.micro_batches
    speed = peak_tflops(hardware, job.precision) * hardware.efficiency * 1e12
    forwards = forward_passes(choice, engine, contents.is_last)
    layers = scores = tp = cp = ep = 0.0
    for kind, count in contents.layers:
        whole, attention = layer_flops(shapes, kind, widths[kind], choice, job, engine)
        one = per_micro_batch(widths[kind], choice, job, engine, forwards)
        layers, scores = layers + count * whole, scores + count * attention
        tp, cp, ep = tp + count * one.tp, cp + count * one.cp, ep + count * one.ep
    head = head_flops(shapes, choice, job) if contents.is_last else 0.0
    again = (forwards - 1) * layers
    again += scores if choice.recompute == "attention" else 0.0
    again += head if choice.recompute == "full" else 0.0
    forward, again = (layers + head) / speed, again / speed
    sent = Traffic(
        tp=m * tp,
        cp=m * cp,
        ep=m * ep,
        pp=between_stages(choice, job, shapes.dims["hidden"]),
        dp=between_replicas(shapes, contents, choice, engine),
    )
    seconds = sent.seconds(choice, job, hardware)
    in_layers = (seconds.tp + seconds.cp + seconds.ep) / m
    first = forward + in_layers / (forwards + 1)
    rest = 2 * forward + again + in_layers * forwards / (forwards + 1)
    waits = idle(choice.schedule, layout.pp, layout.vpp, PassCosts(first, rest, rest / 2)) if layout.pp > 1 else 0.0
    slowdown = engine.zero3_slowdown if layout.zero == 3 else 1.0
    return StepTime(3 * forward * m * slowdown, again * m * slowdown, waits, seconds, sent)
