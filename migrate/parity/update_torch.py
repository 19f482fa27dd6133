"""Stage U in PyTorch: `torch.optim.AdamW` and `clip_grad_norm_` as a training script uses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from migrate.parity.updates import NORM, RATE, UPDATES, Updates, changed, gradient


def record(
    model: Any,
    tensors: dict[str, np.ndarray],
    stored_name: Callable[[str], str] = str,
    untrained: Collection[str] = (),
) -> None:
    """Takes the steps and records them. The model's parameters change.

    Args:
        model: of transformers.
        tensors: to fill.
        stored_name: how checkpoints call a parameter; gradients are made from that name.
        untrained: names there of parameters that get no gradient; they are not recorded.
    """
    import torch

    settings = UPDATES
    everything = [(stored_name(name), parameter) for name, parameter in model.named_parameters()]
    named = [(name, parameter) for name, parameter in everything if name not in untrained]
    optimizer, schedule = optimizer_of([parameter for _, parameter in named], settings)
    for step in range(1, settings.steps + 1):
        optimizer.zero_grad()
        for micro_batch in range(settings.micro_batches):
            for name, parameter in named:
                injected = torch.from_numpy(gradient(name, tuple(parameter.shape), step, micro_batch))
                injected = injected.to(parameter.dtype)
                parameter.grad = injected if parameter.grad is None else parameter.grad + injected
        before = {name: parameter.detach().clone() for name, parameter in named}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        tensors[NORM.format(step)] = norm.detach().numpy().reshape(1)
        tensors[RATE.format(step)] = np.array([optimizer.param_groups[0]["lr"]], np.float64)
        optimizer.step()
        schedule.step()
        for name, parameter in named:
            tensors[changed(name, step)] = (parameter.detach() - before[name]).numpy()


def optimizer_of(parameters: Sequence[Any], settings: Updates) -> tuple[Any, Any]:
    """(optimizer, schedule) of a training script: matrices decay, norms and biases do not; warmup, then cosine."""
    import torch

    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_factor, settings))


def _factor(settings: Updates, steps_done: int) -> float:
    step = steps_done + 1
    if step <= settings.warmup_steps:
        return step / settings.warmup_steps
    # The schedule asks for one step more than are taken.
    t = (step - settings.warmup_steps) / max(1, settings.run_steps - settings.warmup_steps)
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * (1 + math.cos(math.pi * t)) / 2
