"""Symptoms of numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import figures, named
from migrate.trouble.rule import Evidence, TroubleRule

HALVINGS = 6
"""Net halvings of the loss scale; a healthy run settles a few below its start."""


def left_out(run: RunRecord) -> Iterator[Evidence]:
    """Steps without an update."""
    steps = [one["step"] for one in run.steps if one["loss"] is None]
    if steps:
        yield Evidence(f"{len(steps)} of {len(run.steps)} steps were left out: {named(steps)}")


def scale_falls(run: RunRecord) -> Iterator[Evidence]:
    """First against last loss scale."""
    scales = figures(run, "loss_scale", 2)
    first, (step, last) = scales[0][1], scales[-1]
    if last * 2**HALVINGS <= first:
        yield Evidence(f"the loss scale fell from {first:g} to {last:g} in step {step}", setting="precision.loss_scale")


def ended(run: RunRecord) -> Iterator[Evidence]:
    """The guard stopped the run."""
    for event in run.events:
        if event["event"] == "failure" and event.get("kind") == "RunError":
            yield Evidence(f"after step {event['step']}: {event['message']}", "events.jsonl", "guard.non_finite")


RULES = (
    TroubleRule(
        "T201", "steps were left out, because loss or gradients were not finite", Severity.WARNING,
        "fp16: the loss scale was too high for a step, which is normal now and then. Otherwise an overflow in the "
        "model, a division by zero, or a damaged batch.",
        "More than a few in a thousand: train in bf16 (precision.compute), lower optimizer.lr, set "
        "optimizer.clip_norm, and look at the batches of these steps.",
        left_out,
    ),
    TroubleRule(
        "T202", "loss scale keeps falling", Severity.ERROR,
        "fp16 overflows again and again: activations or gradients exceed 65,504, however small the scale.",
        "Train in bf16. If fp16 is a must, find the layer whose activations grow and compute it in fp32.",
        scale_falls,
    ),
    TroubleRule(
        "T203", "the guard ended the run", Severity.ERROR,
        "Loss or gradients were not finite more often in a row than guard.max_skips allows.",
        "Resume from the last checkpoint with a lower optimizer.lr or in bf16. If the same step fails again, its "
        "batch, which the message names, is the cause.",
        ended,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
