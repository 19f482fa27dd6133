"""Learning rate over the steps: warmup, then cosine, linear, constant, or warmup-stable-decay."""

from __future__ import annotations

import math

from ms_models.train.config import OptimizerConfig, ScheduleConfig


def learning_rate(step: int, steps: int, optimizer: OptimizerConfig, schedule: ScheduleConfig) -> float:
    """Learning rate of an optimizer step.

    Args:
        step: from 1 to `steps`.
        steps: of the whole run.
        optimizer: gives the peak rate.
        schedule: gives the shape.

    Returns:
        Warmup: peak * step / warmup_steps, so that the first step already moves and step `warmup_steps` has the peak.
        After it, with t rising from 0 at the end of warmup to 1 at the last step and m = min_lr_ratio:
        cosine: peak * (m + (1 - m) * (1 + cos(pi t)) / 2); linear: peak * (1 - (1 - m) t);
        wsd: the peak until the last `decay_fraction` of the steps, then linear to peak * m; constant: peak.
    """
    assert 1 <= step <= steps, f"step {step} of {steps}"
    if step <= schedule.warmup_steps:
        return optimizer.lr * step / schedule.warmup_steps
    return optimizer.lr * _shape(step - schedule.warmup_steps, steps - schedule.warmup_steps, steps, schedule)


def _shape(step: int, length: int, steps: int, schedule: ScheduleConfig) -> float:
    floor = schedule.min_lr_ratio
    if schedule.kind == "cosine":
        return floor + (1 - floor) * (1 + math.cos(math.pi * step / length)) / 2
    if schedule.kind == "linear":
        return 1 - (1 - floor) * step / length
    if schedule.kind == "wsd":
        decay = min(length, max(1, round(steps * schedule.decay_fraction)))
        return 1 - (1 - floor) * max(0, step - (length - decay)) / decay
    return 1.0
