"""Stage U of a repository: two steps of its own optimizer, on gradients that are injected."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.parity.updates import UPDATES, changed, gradient
from migrate.sides.framework import Framework


def record_updates(
    framework: Framework,
    module: Any,
    parameters: Mapping[str, Any],
    optimizer: Mapping[str, str],
    tensors: dict[str, np.ndarray],
) -> None:
    """Makes the optimizer as the repository does, takes the steps, and records what they change.

    Both sides call it in the same words: converted code keeps `parameter.grad` and `optimizer.step()`.

    Args:
        framework: of this side.
        module: whose parameters change.
        parameters: those that are trained, by the names of the original.
        optimizer: of the recipe.
        tensors: to fill, by parameter and step.
    """
    namespace = {**vars(importlib.import_module(optimizer["module"])), "model": module}
    made = eval(optimizer["build"], namespace)
    for step in range(1, UPDATES.steps + 1):
        before = _values(framework, parameters)
        for name, parameter in parameters.items():
            shape = tuple(parameter.shape)
            parts = [gradient(name, shape, step, micro_batch) for micro_batch in range(UPDATES.micro_batches)]
            parameter.grad = framework.from_numpy(np.sum(parts, axis=0, dtype=np.float32))
        if "clip" in optimizer:
            eval(optimizer["clip"], namespace)
        made.step()
        for name, value in _values(framework, parameters).items():
            tensors[changed(name, step)] = value - before[name]


def _values(framework: Framework, parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: framework.to_numpy(parameter).copy() for name, parameter in parameters.items()}
