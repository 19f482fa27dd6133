"""What both sides of a verification do alike: find the tensors of an output, make a loss, say where it failed."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from migrate.captures.store import CaptureWriter, first_line
from migrate.code.verify.lines_run import recorded
from migrate.code.verify.recipes import Job, Recipe, generator

STAGES = ("build", "weights", "forward", "modules", "gradients", "training")
LARGEST_STEP = 0.05  # length of an update step: descent by the gradient, scaled down to norm one
LOSS = "loss"
UNFIT = 3
"""Exit code of a side whose process cannot go on, though nothing is wrong with its last recipe."""


class Framework(Protocol):
    """The verbs of one framework; see `torch_side` and `mindspore_side`."""

    @property
    def tensor(self) -> type: ...

    def seed(self, value: int) -> None: ...
    def versions(self) -> dict[str, str]: ...
    def from_numpy(self, values: np.ndarray) -> Any: ...
    def to_numpy(self, value: Any) -> np.ndarray: ...
    def set_mode(self, module: Any, training: bool) -> None: ...
    def weights(self, module: Any, reference: Path | None) -> dict[str, np.ndarray]: ...
    def without_gradients(self, call: Callable[[], Any]) -> Any: ...
    def submodules(self, module: Any) -> list[tuple[str, Any]]: ...
    def gradients(self, module: Any, loss: Callable[[], Any]) -> tuple[float, dict[str, np.ndarray]]: ...
    def step(self, module: Any, loss: Callable[[], Any], length: float) -> float: ...


def step_scale(gradients: Iterable[np.ndarray], length: float) -> float:
    """Factor of the gradients in a step: `length`, over their common norm where that is above one."""
    return length / max(float(np.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in gradients))), 1.0)


def leaves(value: Any, tensor: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors inside an output, with dotted paths: through mappings, sequences, named tuples and dataclasses."""
    if isinstance(value, tensor):
        yield path or "output", value
        return
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif hasattr(value, "_fields"):
        items = [(name, getattr(value, name)) for name in value._fields]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
    elif isinstance(value, list | tuple):
        items = [(str(i), item) for i, item in enumerate(value)]
    else:
        return
    for name, item in items:
        yield from leaves(item, tensor, f"{path}.{name}" if path else name)


def run(framework: Framework, job: Job, after: Callable[..., bool] | None = None) -> None:
    """Runs every recipe of a job; the directory of each is made when it begins, so that a death is charged to it.

    Args:
        framework: of this side.
        job: what to run.
        after: called with a recipe, its module and its directory, once it went through all stages; where it gives
            False, the process ends, and another goes on.
    """
    sys.path.insert(0, str(job.root))
    for number, recipe in enumerate(job.recipes):
        folder = job.out / str(number)
        if folder.exists():
            continue  # an earlier process got this far
        folder.mkdir(parents=True)
        writer = CaptureWriter(folder, framework.versions(), describe=lambda error: _where(error, job.root))
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
        module = _build(recipe)
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

        stop = _watch(framework.submodules(module), record)
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


def tensors_of(framework: Framework, value: Any) -> Any:
    """The same value with tensors for arrays, containers included."""
    if isinstance(value, np.ndarray):
        return framework.from_numpy(value)
    if isinstance(value, dict):
        return {key: tensors_of(framework, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(tensors_of(framework, item) for item in value)
    return value


def _watch(modules: list[tuple[str, Any]], record: Callable[[str, Any], None]) -> Callable[[], None]:
    """Reports the output of every module as it ends; the result ends that. Both frameworks call such hooks alike."""

    def report(name: str, _module: Any, _args: Any, output: Any) -> None:
        record(name, output)

    handles = [module.register_forward_hook(partial(report, name)) for name, module in modules]

    def stop() -> None:
        for handle in handles:
            handle.remove()

    return stop


def _build(recipe: Recipe) -> Any:
    namespace = vars(importlib.import_module(recipe.module))
    return eval(recipe.build, dict(namespace))


def loss_of(framework: Framework, recipe: Recipe, output: Any, weights: dict[str, Any] | None = None) -> Any:
    """The loss that a recipe names, or a weighted mean of the whole output.

    Args:
        framework: of the output.
        recipe: which path of the output is the loss.
        output: of the module.
        weights: what was drawn before, by path.
    """
    found = dict(leaves(output, framework.tensor))
    if recipe.loss is not None:
        return found[recipe.loss]
    total: Any = None
    for path, leaf in found.items():
        if "float" not in str(leaf.dtype).lower():
            continue
        if weights is None or path not in weights:
            drawn = generator(f"loss {path}").standard_normal(tuple(leaf.shape))
            weight = framework.from_numpy(drawn.astype(np.float32)).to(leaf.dtype)
            if weights is not None:
                weights[path] = weight
        else:
            weight = weights[path]
        part = (leaf * weight).mean()
        total = part if total is None else total + part
    if total is None:
        raise ValueError("the output holds no floating point tensor to differentiate")
    return total


def _where(error: Exception, root: Path) -> str:
    """The exception, with the last line of the repository that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(root))]
    text = first_line(error)
    if not frames:
        return text
    return f"{Path(frames[-1].filename).relative_to(root).as_posix()}:{frames[-1].lineno}: {text}"
