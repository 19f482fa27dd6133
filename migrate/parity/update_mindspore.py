"""Stage U in MindSpore: a step of the runner's `Trainer`, whose forward and backward pass gives injected gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from migrate.parity.updates import NORM, RATE, UPDATES, Updates, changed, gradient

Injector = Callable[[str, int, int], np.ndarray]


def record(
    model: Any, tensors: dict[str, np.ndarray], idle: Collection[str] = (), gradient_of: Injector | None = None
) -> None:
    """Takes the steps and records them. The model's parameters change.

    Args:
        model: of ms_models.
        tensors: to fill.
        idle: parameters whose gradient is zero; they are not recorded.
        gradient_of: this rank's gradient of a parameter, by name, step and micro-batch; the whole one by default.

    Raises:
        RuntimeError: the trainer left a step out.
    """
    settings = UPDATES
    trainer, rate = trainer_of(model, settings)
    parameters = model.trainable_params()
    recorded = [parameter.name for parameter in parameters if parameter.name not in idle]
    injected = _Injected(trainer, idle, gradient_of)
    trainer._passes = injected
    labels = np.zeros((1, 2), np.int32)
    batch = {"input_ids": labels, "attention_mask": labels + 1, "labels": labels}
    for step in range(1, settings.steps + 1):
        injected.step = step
        before = weights_of(trainer)
        lr = rate(step)
        result = trainer.step([batch] * settings.micro_batches, lr)
        if result.outcome != "updated":
            raise RuntimeError(f"step {step}: {result.outcome}")
        tensors[NORM.format(step)] = np.array([result.grad_norm], np.float32)
        tensors[RATE.format(step)] = np.array([lr], np.float64)
        after = weights_of(trainer)
        for name in recorded:
            tensors[changed(name, step)] = after[name] - before[name]


def weights_of(trainer: Any) -> dict[str, np.ndarray]:
    """Copies of the parameters of this rank that are trained, by name; every rank calls it.

    Where replicas divide them (ZeRO 3), the model has single elements, and what the ranks keep is put together.

    Args:
        trainer: of the runner.
    """
    if trainer.divided is not None:
        whole: dict[str, np.ndarray] = trainer.sharding.whole(trainer.divided.kept)
        return whole
    return {parameter.name: parameter.asnumpy().copy() for parameter in trainer.sharding.parameters}


def trainer_of(
    model: Any, settings: Updates, count_valid: Callable[[np.ndarray], int] | None = None
) -> tuple[Any, Callable[[int], float]]:
    """(the runner's trainer, learning rate by step from 1).

    Args:
        model: of ms_models.
        settings: of the optimizer and its schedule.
        count_valid: targets in labels; those of a decoder by default.
    """
    from ms_models.train import schedule as schedule_module
    from ms_models.train.config import OptimizerConfig, ScheduleConfig
    from ms_models.train.step import Trainer

    optimizer = OptimizerConfig(
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )
    schedule = ScheduleConfig("cosine", settings.warmup_steps, settings.min_lr_ratio)
    further: dict[str, Any] = {} if count_valid is None else {"count_valid": count_valid}
    trainer = Trainer(model, model.mesh, optimizer, jit=False, **further)
    # Looked up when it is called: the schedule is one of the things that faults are planted into.
    return trainer, lambda step: schedule_module.learning_rate(step, settings.run_steps, optimizer, schedule)


class _Injected:
    """Stands where the forward and backward passes are."""

    def __init__(self, trainer: Any, idle: Collection[str], gradient_of: Injector | None) -> None:
        self.add = trainer.gradients.adder(trainer.sharding.parameters)
        buckets = trainer.sharding.buckets
        shapes = {name: one for bucket in buckets for name, one in zip(bucket.names, bucket.shapes, strict=True)}
        self.shapes = [(parameter.name, shapes[parameter.name]) for parameter in trainer.sharding.parameters]
        self.idle, self.gradient_of, self.step = idle, gradient_of, 0

    def accumulate(self, batches: Any, scale: Any) -> list[Any]:
        """Adds the injected gradients of each micro-batch; gives a loss of 1 for each."""
        from mindspore import Tensor

        for micro_batch in range(len(batches)):
            self.add([Tensor(self._gradient(name, shape, micro_batch)) for name, shape in self.shapes])
        return [Tensor(1.0)] * len(batches)

    def _gradient(self, name: str, shape: tuple[int, ...], micro_batch: int) -> np.ndarray:
        if name in self.idle:
            return np.zeros(shape, np.float32)
        if self.gradient_of is not None:
            return self.gradient_of(name, self.step, micro_batch)
        return gradient(name, shape, self.step, micro_batch)
