"""The learning-rate schedules of transformers: a warmup from 0 in a straight line, then a curve, as `LambdaLR`.

`s` counts updates, `w` is the length of the warmup, `n` of the training; `p = (s - w) / (n - w)` is the progress after
the warmup. All factors multiply the initial rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .schedulers import LambdaLR
from .schedulers_plateau import ReduceLROnPlateau
from .training_choices import SchedulerType

Curve = Callable[[int], float]


def get_constant_schedule(optimizer: Any, last_epoch: int = -1) -> LambdaLR:
    """The initial rate throughout."""
    return LambdaLR(optimizer, lambda s: 1, last_epoch)


def get_reduce_on_plateau_schedule(optimizer: Any, **kwargs: Any) -> ReduceLROnPlateau:
    """`ReduceLROnPlateau` with its own arguments."""
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_constant_schedule_with_warmup(optimizer: Any, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """The initial rate after the warmup."""
    return _after_warmup(optimizer, num_warmup_steps, lambda s: 1.0, last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """A straight line to 0: `(n - s) / (n - w)`."""
    length = max(1, num_training_steps - num_warmup_steps)
    return _after_warmup(optimizer, num_warmup_steps, lambda s: max(0.0, (num_training_steps - s) / length), last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """`(1 + cos(2 pi c p)) / 2`; half a wave by default."""
    progress = _progress(num_warmup_steps, num_training_steps)
    return _after_warmup(
        optimizer, num_warmup_steps, lambda s: max(0.0, _wave(2.0 * num_cycles * progress(s))), last_epoch
    )


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Any, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """`num_cycles` half waves, each from the initial rate to 0."""
    progress = _progress(num_warmup_steps, num_training_steps)

    def curve(s: int) -> float:
        return 0.0 if progress(s) >= 1.0 else max(0.0, _wave((num_cycles * progress(s)) % 1.0))

    return _after_warmup(optimizer, num_warmup_steps, curve, last_epoch)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """From the initial rate to `lr_end` as `(1 - p)^power`.

    Raises:
        ValueError: `lr_end` is not below the initial rate.
    """
    start = optimizer.defaults["lr"]
    if not start > lr_end:
        raise ValueError(f"lr_end ({lr_end}) must be smaller than initial lr ({start})")

    def curve(s: int) -> float:
        if s > num_training_steps:
            return lr_end / start
        left = 1 - (s - num_warmup_steps) / (num_training_steps - num_warmup_steps)
        return ((start - lr_end) * left**power + lr_end) / start

    return _after_warmup(optimizer, num_warmup_steps, curve, last_epoch)


def get_inverse_sqrt_schedule(
    optimizer: Any, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """`sqrt(t / (s - w + t))`; `t` is the warmup, or 10000 without one."""
    scale = (num_warmup_steps or 10_000) if timescale is None else timescale
    return _after_warmup(
        optimizer, num_warmup_steps, lambda s: 1.0 / math.sqrt((s + scale - num_warmup_steps) / scale), last_epoch
    )


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """A cosine to `min_lr`, or to the share `min_lr_rate` of the initial rate; exactly one of them is given."""
    lowest = _lowest(optimizer, min_lr, min_lr_rate)
    progress = _progress(num_warmup_steps, num_training_steps)
    return _after_warmup(
        optimizer,
        num_warmup_steps,
        lambda s: max(0, _wave(2.0 * num_cycles * progress(s)) * (1 - lowest) + lowest),
        last_epoch,
    )


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Any,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """As `get_cosine_with_min_lr_schedule_with_warmup`, one step ahead and with a warmup from `warmup_lr_rate`."""
    lowest = _lowest(optimizer, min_lr, min_lr_rate)
    length = max(1.0, num_training_steps - num_warmup_steps)

    def factor(s: int) -> float:
        if s < num_warmup_steps and warmup_lr_rate is None:
            return (s + 1.0) / max(1.0, num_warmup_steps)
        if s < num_warmup_steps and warmup_lr_rate is not None:
            return warmup_lr_rate + (1.0 - warmup_lr_rate) * s / max(1, num_warmup_steps - 1)
        wave = _wave(2.0 * num_cycles * (s - num_warmup_steps + 1.0) / length)
        return max(0, wave * (1 - lowest) + lowest)

    return LambdaLR(optimizer, factor, last_epoch)


def get_wsd_schedule(
    optimizer: Any,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Warmup, a stretch at the initial rate, and a decay to the share `min_lr_ratio` of it.

    Raises:
        ValueError: an unknown kind of curve, or neither the training's nor the stretch's length.
    """
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ValueError("Either num_training_steps or num_stable_steps must be specified.")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
    for name, kind in (("warmup", warmup_type), ("decay", decay_type)):
        if kind not in ("linear", "cosine", "1-sqrt"):
            raise ValueError(f"Unknown {name} type: {kind}, expected 'linear', 'cosine' or '1-sqrt'")
    decay_start = num_warmup_steps + num_stable_steps
    falling: dict[str, Callable[[float], float]] = {
        "linear": lambda p: 1.0 - p,
        "cosine": lambda p: _wave(2.0 * num_cycles * p),
        "1-sqrt": lambda p: 1.0 - math.sqrt(p),
    }
    rising: dict[str, Callable[[float], float]] = {
        "linear": lambda p: p,
        "cosine": lambda p: 0.5 * (1.0 - math.cos(math.pi * p)),
        "1-sqrt": lambda p: 1.0 - math.sqrt(1.0 - p),
    }

    def factor(s: int) -> float:
        if s < num_warmup_steps:
            shape = rising[warmup_type](s / max(1, num_warmup_steps))
        elif s < decay_start:
            return 1.0
        elif s < decay_start + num_decay_steps:
            shape = falling[decay_type]((s - decay_start) / max(1, num_decay_steps))
        else:
            return min_lr_ratio
        return max(0.0, shape * (1.0 - min_lr_ratio) + min_lr_ratio)

    return LambdaLR(optimizer, factor, last_epoch)


_SCHEDULES: dict[SchedulerType, Callable[..., Any]] = {
    SchedulerType.LINEAR: get_linear_schedule_with_warmup,
    SchedulerType.COSINE: get_cosine_schedule_with_warmup,
    SchedulerType.COSINE_WITH_RESTARTS: get_cosine_with_hard_restarts_schedule_with_warmup,
    SchedulerType.POLYNOMIAL: get_polynomial_decay_schedule_with_warmup,
    SchedulerType.CONSTANT: get_constant_schedule,
    SchedulerType.CONSTANT_WITH_WARMUP: get_constant_schedule_with_warmup,
    SchedulerType.INVERSE_SQRT: get_inverse_sqrt_schedule,
    SchedulerType.REDUCE_ON_PLATEAU: get_reduce_on_plateau_schedule,
    SchedulerType.COSINE_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup,
    SchedulerType.COSINE_WARMUP_WITH_MIN_LR: get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
    SchedulerType.WARMUP_STABLE_DECAY: get_wsd_schedule,
}


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Any,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """A schedule by its name.

    Raises:
        ValueError: an unknown name, or a length that the schedule needs is missing.
    """
    kind = SchedulerType(name)
    make, more = _SCHEDULES[kind], scheduler_specific_kwargs or {}
    if kind is SchedulerType.CONSTANT:
        return make(optimizer)
    if kind is SchedulerType.REDUCE_ON_PLATEAU:
        return make(optimizer, **more)
    if num_warmup_steps is None:
        raise ValueError(f"{kind} requires `num_warmup_steps`, please provide that argument.")
    if kind is SchedulerType.CONSTANT_WITH_WARMUP:
        return make(optimizer, num_warmup_steps=num_warmup_steps)
    if kind is SchedulerType.INVERSE_SQRT:
        return make(optimizer, num_warmup_steps=num_warmup_steps, **more)
    if num_training_steps is None and kind is not SchedulerType.WARMUP_STABLE_DECAY:
        raise ValueError(f"{kind} requires `num_training_steps`, please provide that argument.")
    return make(optimizer, num_warmup_steps=num_warmup_steps, num_training_steps=num_training_steps, **more)


def _after_warmup(optimizer: Any, warmup: int, curve: Curve, last_epoch: int) -> LambdaLR:
    return LambdaLR(optimizer, lambda s: s / max(1, warmup) if s < warmup else curve(s), last_epoch)


def _progress(warmup: int, training: int) -> Curve:
    return lambda s: (s - warmup) / max(1, training - warmup)


def _wave(halves: float) -> float:
    """A cosine from 1 to 0 and back; 1 is half a wave."""
    return 0.5 * (1.0 + math.cos(math.pi * halves))


def _lowest(optimizer: Any, rate: float | None, share: float | None) -> float:
    if rate is not None and share is not None:
        raise ValueError("Only one of min_lr or min_lr_rate should be set")
    if rate is not None:
        return float(rate / optimizer.defaults["lr"])
    if share is None:
        raise ValueError("One of min_lr or min_lr_rate should be set through the `lr_scheduler_kwargs`")
    return share
