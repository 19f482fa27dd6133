"""Stage U: what both optimizers do with the same gradients, which are made here and injected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Updates:
    """Two steps from the first on: bias correction and warmup are largest there; clipping is active in both."""

    steps: int = 2
    micro_batches: int = 2
    """Gradients are added up over them, as accumulation does."""
    run_steps: int = 12
    """Of the schedule: warmup, then cosine."""
    warmup_steps: int = 4
    lr: float = 1e-3
    min_lr_ratio: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0


UPDATES = Updates()
NORM, RATE = "gradient norm of step {}", "learning rate of step {}"


def gradient(name: str, shape: tuple[int, ...], step: int, micro_batch: int) -> np.ndarray:
    """The gradient of one parameter, fp32; the same in every process.

    Magnitudes spread over four powers of ten, so that the epsilon of the optimizer is felt by the small ones; their
    norm over a model is far above the clipping threshold.
    """
    seed = np.random.SeedSequence([step, micro_batch, *name.encode()])
    generator = np.random.Generator(np.random.PCG64(seed))
    scale = 10.0 ** generator.uniform(-4.0, 0.0, shape)
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def names(parameters: list[str]) -> list[str]:
    """What a side records: norm and learning rate of each step, then what each parameter changed by."""
    found = []
    for step in range(1, UPDATES.steps + 1):
        found += [NORM.format(step), RATE.format(step), *(changed(name, step) for name in parameters)]
    return found


def changed(name: str, step: int) -> str:
    """Name of the change of a parameter in a step."""
    return f"{name} in step {step}"
