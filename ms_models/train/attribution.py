"""What of a step was not finite on this rank: gradients, weights, and the first layer that a batch comes out of so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from ms_models.families.pretrained import Pretrained
from ms_models.parallel.pipeline import Inputs, Pipeline
from ms_models.train.checkpoints import random_state
from ms_models.train.step import Trainer


@dataclass
class Activation:
    """A layer whose output was not finite."""

    layer: str
    """Name of the cell."""
    micro_batch: int
    """Counted from 0 within the step."""
    bad: int
    """Elements that are not finite."""
    size: int
    """Elements in all."""
    is_origin: bool
    """Whether its inputs were finite: it is the layer that made them."""


@dataclass
class Attribution:
    """Of one rank. Tensors are those that it keeps and counts: under ZeRO its rows of each."""

    gradients: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By parameter: elements `bad` of `size`, and the `norm` of the finite ones, loss scale taken out."""
    weights: dict[str, int] = field(default_factory=dict)
    """Elements that are not finite, of parameters that have such."""
    activation: Activation | None = None
    """The first on this rank."""
    losses: list[float] = field(default_factory=list)
    """Summed loss of each micro-batch, on ranks that compute it."""


def attribute(trainer: Trainer, batches: Sequence[Inputs], loss_scale: float) -> Attribution:
    """Looks at a step that has just been left out; every rank calls it.

    The batches pass the model once more, operator by operator, with a look at what comes out of every cell; random
    generators are put back. Gradients are what the accumulators still hold.

    Args:
        trainer: nothing of it is changed.
        batches: of the step.
        loss_scale: of the step.
    """
    found = Attribution()
    reduced = trainer.gradients.reduce()
    for bucket, kept in zip(trainer.sharding.buckets, reduced, strict=True):
        if bucket.is_counted:
            for name, value in bucket.named(kept.asnumpy()).items():
                finite = np.isfinite(value)
                norm = float(np.linalg.norm(np.where(finite, value, 0).astype(np.float64))) / loss_scale
                found.gradients[name] = {"bad": int((~finite).sum()), "size": value.size, "norm": norm}
    found.weights = {
        name: bad for name, value in _weights(trainer).items() if (bad := int((~np.isfinite(value)).sum()))
    }
    generators = random_state.capture()
    try:
        with _watched(trainer.model, found) as begin:
            for number, batch in enumerate(batches):
                begin(number)
                found.losses += [float(value.asnumpy().reshape(-1)[0]) for value in _forward(trainer, batch)]
    finally:
        random_state.restore(generators)
    return found


def _weights(trainer: Trainer) -> dict[str, np.ndarray]:
    if trainer.divided is None:
        return {parameter.name: parameter.asnumpy() for parameter in trainer.model.get_parameters()}
    parts = zip(trainer.sharding.buckets, trainer.divided.kept, strict=True)
    return {name: value for bucket, kept in parts for name, value in bucket.named(kept.asnumpy()).items()}


def _forward(trainer: Trainer, batch: Inputs) -> list[Tensor]:
    """The summed loss where this rank computes it, nothing of it compiled."""
    if trainer.mesh.layout.pp > 1:
        return Pipeline(trainer.model, trainer.gradients.adder, lambda function: function).evaluate([batch])
    ids, mask, labels = batch
    if trainer.divided is None:
        return [trainer.model.loss(ids, labels, mask)[0]]
    with trainer.divided.gathered():
        return [trainer.model.loss(ids, labels, mask)[0]]


@contextmanager
def _watched(model: nn.Cell, found: Attribution) -> Iterator[Any]:
    """Within the block the first bad output of a cell is entered into `found`; gives a function for the micro-batch."""
    cells = model.modules() if isinstance(model, Pretrained) else {n: c for n, c in model.cells_and_names() if n}
    current = [0]

    def watch(name: str) -> Any:
        def hook(cell: nn.Cell, inputs: Any, output: Any) -> None:
            if found.activation is not None and found.activation.is_origin:
                return
            bad, size = _count(output)
            if bad:
                is_origin = not _count(inputs)[0]
                # A cell inside of another one returns first; the outer one may still be the first with good inputs.
                if found.activation is None or is_origin:
                    found.activation = Activation(name, current[0], bad, size, is_origin)

        return hook

    handles = [cell.register_forward_hook(watch(name)) for name, cell in cells.items()]
    try:
        yield lambda number: current.__setitem__(0, number)
    finally:
        for handle in handles:
            handle.remove()


def _count(values: Any) -> tuple[int, int]:
    """Elements that are not finite, and all, of the floating-point tensors in nested tuples."""
    if isinstance(values, tuple | list):
        counts = [_count(value) for value in values]
        return sum(bad for bad, _ in counts), sum(size for _, size in counts)
    if not isinstance(values, Tensor) or not values.is_floating_point():
        return 0, 0
    array = values.float().asnumpy()
    return int((~np.isfinite(array)).sum()), int(array.size)
