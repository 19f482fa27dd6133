"""What both sides of a verification do alike: every recipe through all stages, with its tensors captured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from migrate.captures.store import CaptureWriter
from migrate.code.verify.job import Job
from migrate.code.verify.lines_run import recorded
from migrate.sides.framework import Framework, build, watch, where
from migrate.sides.outputs import leaves, loss_of, tensors_of
from migrate.sides.recipes import Recipe
from migrate.sides.running import begin

STAGES = ("build", "weights", "forward", "modules", "gradients", "training")
LARGEST_STEP = 0.05  # length of an update step: descent by the gradient, scaled down to norm one
LOSS = "loss"
UNFIT = 3
"""Exit code of a side whose process cannot go on, though nothing is wrong with its last recipe."""


def run(framework: Framework, job: Job, after: Callable[..., bool] | None = None) -> None:
    """Runs every recipe of a job that no earlier process has begun.

    Args:
        framework: of this side.
        job: what to run.
        after: called with a recipe, its module and its directory, once it went through all stages; where it gives
            False, the process ends, and another goes on.
    """
    sys.path.insert(0, str(job.root))
    for number, recipe, folder in begin(job.recipes, job.out):
        writer = CaptureWriter(folder, framework.versions(), describe=lambda error: where(error, job.root))
        reference = None if job.reference is None else job.reference / str(number)
        module = _run_recipe(framework, job, recipe, writer, reference)
        if module is not None and after is not None and not after(recipe, module, folder):
            raise SystemExit(UNFIT)


def _run_recipe(framework: Framework, job: Job, recipe: Recipe, writer: CaptureWriter, reference: Path | None) -> Any:
    """The module, if it went through all stages."""
    module: Any = None
    is_reference = job.reference is None

    def watched() -> AbstractContextManager[None]:
        """The lines that run on the PyTorch side are those that an agreement of both sides speaks for."""
        return recorded(job.root, writer.out) if is_reference else nullcontext()

    with writer.stage("build"), watched():
        framework.seed(job.seed)
        module = build(recipe)
        framework.set_mode(module, recipe.training)
    if module is None:
        return None
    with writer.stage("weights") as tensors:
        tensors.update(framework.weights(module, reference))
    positional, keywords = recipe.arguments()
    args = [tensors_of(framework, value) for value in positional]
    kwargs = {key: tensors_of(framework, value) for key, value in keywords.items()}
    target = module if recipe.method is None else getattr(module, recipe.method)

    def call() -> Any:
        framework.seed(job.seed)
        return target(*args, **kwargs)

    def loss() -> Any:
        return loss_of(framework, recipe, call())

    with writer.stage("forward") as tensors, watched():
        output = framework.without_gradients(call)
        tensors.update({path: framework.to_numpy(leaf) for path, leaf in leaves(output, framework.tensor)})
        if not tensors:
            raise ValueError(f"the output holds no tensor: {type(output).__name__}")
    if "forward" not in writer.body["stages"]:
        return None
    with writer.stage("modules") as tensors:
        calls: dict[str, int] = {}

        def record(name: str, value: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            for path, leaf in leaves(value, framework.tensor):
                tensors[f"{name}[{calls[name]}].{path}"] = framework.to_numpy(leaf).copy()

        stop = watch(framework.submodules(module), record)
        try:
            framework.without_gradients(call)
        finally:
            stop()
    with writer.stage("gradients") as tensors, watched():
        value, gradients = framework.gradients(module, loss)
        tensors.update({LOSS: np.array([value]), **gradients})
    if "gradients" in writer.body["stages"]:
        with writer.stage("training") as tensors:
            tensors[LOSS] = np.array([framework.step(module, loss, LARGEST_STEP) for _ in range(job.steps)])
    return module if "training" in writer.body["stages"] else None
