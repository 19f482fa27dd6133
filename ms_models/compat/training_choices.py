"""The words that training arguments choose from."""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn


class ExplicitEnum(str, Enum):  # noqa: UP042  (its text is the name of the member, as in transformers)
    """An enumeration of words whose error for another word names the right ones."""

    @classmethod
    def _missing_(cls, value: Any) -> NoReturn:
        words = [member.value for member in cls]
        raise ValueError(f"{value} is not a valid {cls.__name__}, please select one of {words}")


class IntervalStrategy(ExplicitEnum):
    """When to log or evaluate."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(ExplicitEnum):
    """When to write a checkpoint."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class SchedulerType(ExplicitEnum):
    """Learning-rate schedules of `hf_schedules.get_scheduler`."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"


class OptimizerNames(ExplicitEnum):
    """Optimizers that a trainer can make."""

    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    SGD = "sgd"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"
