"""Symptoms of numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.figures import figures, named
from migrate.trouble.rule import Evidence, TroubleRule

NOT_FINITE = "non_finite"
OVERFLOWS, OVERFLOW_SHARE = 16, 0.005
"""Overflows of fp16 that are normal: a scale of 65,536 is found within 16 halvings, and doubles every 2,000 steps."""
HALVINGS = 6
"""Net halvings of the loss scale; a healthy run settles a few below its start."""


def left_out(run: RunRecord) -> Iterator[Evidence]:
    """Steps without an update, whose numbers were not finite; fp16's overflows up to what its scale explains."""
    steps = [one["step"] for one in run.steps if one.get("outcome", NOT_FINITE) == NOT_FINITE and one["loss"] is None]
    if steps:
        yield Evidence(f"{len(steps)} of {len(run.steps)} steps were left out: {named(steps)}")
    overflows = [one["step"] for one in run.steps if one.get("outcome") == "overflow"]
    if len(overflows) > max(OVERFLOWS, OVERFLOW_SHARE * len(run.steps)):
        yield Evidence(f"fp16 overflowed in {len(overflows)} of {len(run.steps)} steps: {named(overflows)}")


def spikes_left_out(run: RunRecord) -> Iterator[Evidence]:
    """Steps that the guard left out."""
    steps = [one["step"] for one in run.steps if one.get("outcome") == "spike"]
    if steps:
        yield Evidence(f"{len(steps)} of {len(run.steps)} steps: {named(steps)}", setting="guard")


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
        "An overflow in the model, a division by zero, or a damaged batch. In fp16, overflows of the scaled gradients "
        "are normal now and then; these are more.",
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
        "T204", "steps were left out as spikes", Severity.NOTE,
        "Loss or gradient norm was far above that of the steps before; guard leaves such steps out.",
        "Look at the batches, which the run has kept. If there are many, lower optimizer.lr or clean the data.",
        spikes_left_out,
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
