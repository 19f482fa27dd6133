"""What both sides capture of a recipe: build, weights, every submodule's output, the loss, gradients, updates."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mappings.formats.hf_directory import read_json
from mappings.formats.weights_table import WeightsTable
from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.recording import INPUTS
from migrate.parity.repository.job import RepositoryJob
from migrate.parity.repository.naming import Naming, naming
from migrate.parity.repository.optimizing import record_updates
from migrate.parity.repository.recording import HUGE, apart, plain, recorded
from migrate.sides.framework import INPUT, Framework, NothingReachedError, build, where
from migrate.sides.outputs import leaves, loss_of, loss_weight, tensors_of
from migrate.sides.recipes import Recipe
from migrate.sides.running import begin

BUILD = "build"
MADE = "B"
"""Buffers as their constructors made them: loading the reference's weights would hide what is wrong with them."""
SIZE = "size"
"""Of the terms that a made loss is the mean of; they have both signs, so their mean may be anything down to zero."""
MODULES = "modules.json"
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


def run(framework: Framework, job: RepositoryJob) -> None:
    """Captures every recipe of a job that no earlier process has begun."""
    sys.path.insert(0, str(job.root))
    for number, recipe, folder in begin(job.recipes, job.out):
        writer = CaptureWriter(folder, framework.versions(), describe=lambda error: where(error, job.root))
        reference = None if job.reference is None else job.reference / str(number)
        _capture(framework, job, recipe, writer, reference)


def _capture(
    framework: Framework, job: RepositoryJob, recipe: Recipe, writer: CaptureWriter, reference: Path | None
) -> None:
    module: Any = None

    def make(seed: int) -> Any:
        framework.seed(seed)
        made = build(recipe)
        framework.set_mode(made, recipe.training)
        return made

    with writer.stage(BUILD):
        module = make(job.seed)
    if module is None:
        return
    submodules = dict(framework.submodules(module))
    with writer.stage(MADE) as tensors:
        constructed = framework.state(module)
        trainable = framework.trainable(module)
        buffers = {name: plain(value) for name, value in constructed.items() if name not in trainable}
        if reference is None:
            # What another seed changes is drawn, and means nothing on the other side.
            again = framework.state(make(job.seed + 1)) if buffers else {}
            buffers = {n: v for n, v in buffers.items() if n in again and _is_equal(v, plain(again[n]))}
            module = make(job.seed) if buffers else module
            submodules = dict(framework.submodules(module))
        tensors.update(buffers)
    names = Naming({}) if reference is None else _naming(job.table, reference)
    back = {converted: name for name, converted in names.converted.items()}
    with writer.stage("W") as tensors:
        tensors.update(_weights(framework, module, reference, names))
    _describe(writer.out, module, submodules)
    arguments = _Arguments(framework, recipe, job.dtype)
    target = module if recipe.method is None else getattr(module, recipe.method)

    def call(*floats: Any) -> Any:
        args, kwargs = arguments.tensors(floats)
        framework.seed(job.seed)
        return target(*args, **kwargs)

    def loss(*floats: Any) -> Any:
        return loss_of(framework, recipe, call(*floats), leave_out=excluded)

    trained = {back.get(own, own): (own, parameter) for own, parameter in framework.trainable(module).items()}
    if "F" in job.stages:
        with writer.stage("F") as tensors:
            given = Capture.read(reference) if reference is not None and job.forced else None
            watch = recorded(framework, _watched(submodules, reference or writer.out), call, given)
            tensors.update(apart(watch.outputs))
        with writer.stage(INPUTS) as tensors:
            tensors.update(apart(watch.inputs))
    terms: dict[str, float] = {}
    excluded: list[str] = []
    if "L" in job.stages or "G" in job.stages:
        with writer.stage("L") as tensors:
            output = framework.without_gradients(call)
            terms, excluded = _terms(framework, output)
            if recipe.loss is not None or terms:
                value = framework.without_gradients(lambda: loss_of(framework, recipe, output, leave_out=excluded))
                tensors["loss"] = framework.to_numpy(value).reshape(1).copy()
            if recipe.loss is None and terms:
                tensors[SIZE] = np.array([sum(terms.values())])
    if "G" in job.stages:
        with writer.stage("G") as tensors:
            if "L" not in writer.body["stages"]:
                raise ValueError(f"there is no loss: {writer.body['errors']['L']}")
            inputs = [framework.from_numpy(value) for _, value in arguments.floats()]
            is_there = recipe.loss is not None or bool(terms)
            with suppress(NothingReachedError):  # then there are no gradients
                found = framework.gradients(module, loss, inputs)[1] if is_there else {}
                tensors.update(_gradients(framework, trained, found, arguments) if is_there else {})
    if "U" in job.stages and recipe.optimizer is not None:
        with writer.stage("U") as tensors:
            record_updates(framework, module, {name: p for name, (_, p) in trained.items()}, recipe.optimizer, tensors)


def _weights(framework: Framework, module: Any, reference: Path | None, names: Naming) -> dict[str, np.ndarray]:
    """The whole state, by the names of the original: made here, or loaded from the reference and read back."""
    if reference is None:
        return framework.weights(module, None)
    back = {converted: name for name, converted in names.converted.items()}
    with Capture.read(reference).reader("W") as get:
        values = {names.converted[name]: _arranged(get(name), names, name) for name in names.converted}
    framework.load(module, values)
    found = {}
    for converted, value in framework.state(module).items():
        name = back.get(converted, converted)
        axes = names.permutations.get(name)
        found[name] = value if axes is None or value.ndim != len(axes) else value.transpose(np.argsort(axes))
    return found


def _arranged(value: np.ndarray, names: Naming, name: str) -> np.ndarray:
    axes = names.permutations.get(name)
    return value if axes is None or value.ndim != len(axes) else value.transpose(axes)


def _naming(table: Path, reference: Path) -> Naming:
    kind = read_json(reference / MODULES)["class"]
    entry = next((entry for entry in WeightsTable.read(table).classes if entry.name == kind), None)
    return naming(entry, Capture.read(reference).names("W"))


def _describe(out: Path, module: Any, submodules: dict[str, Any]) -> None:
    """Writes the class of the module and of each submodule, and which of them a framework's library brings."""
    body = {
        "class": _kind(module),
        "modules": {path: _kind(child) for path, child in submodules.items()},
        "library": [path for path, child in submodules.items() if _is_library(child)],
    }
    (out / MODULES).write_text(json.dumps(body), encoding="utf-8")


def _kind(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _is_library(module: Any) -> bool:
    return type(module).__module__.split(".")[0] == "torch" and type(module).__name__ not in _CONTAINERS


def _watched(submodules: dict[str, Any], reference: Path) -> dict[str, Any]:
    """Without what lies inside PyTorch's own modules: how those are made up is not the repository's business."""
    library = tuple(f"{path}." for path in read_json(reference / MODULES)["library"])
    return {path: module for path, module in submodules.items() if not path.startswith(library)}


def _is_equal(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def _terms(framework: Framework, output: Any) -> tuple[dict[str, float], list[str]]:
    """Of a made loss: the mean size of the terms of each output, and the outputs that hold masks and stay out of it."""
    sizes: dict[str, float] = {}
    excluded = []
    for path, leaf in leaves(output, framework.tensor):
        values = framework.to_numpy(leaf)
        if values.dtype.kind != "f" or not values.size:
            continue
        if (np.abs(values) > HUGE).any():
            excluded.append(path)
        else:
            sizes[path] = float(np.abs(values * loss_weight(path, values.shape)).mean(dtype=np.float64))
    return sizes, excluded


def _gradients(
    framework: Framework, trained: Mapping[str, tuple[str, Any]], found: Mapping[str, np.ndarray], arguments: _Arguments
) -> dict[str, np.ndarray]:
    """Of every trained parameter and every input of floating point; zeros where the loss does not reach."""
    result = {}
    for name, (own, parameter) in trained.items():
        result[name] = found[own] if own in found else np.zeros_like(framework.to_numpy(parameter))
    for number, (name, value) in enumerate(arguments.floats()):
        key = INPUT.format(number)
        result[f"input {name}"] = found[key] if key in found else np.zeros_like(value)
    return {name: plain(value) for name, value in result.items()}


class _Arguments:
    """Arguments of the call of a recipe, made anew each time: a module may write into them."""

    def __init__(self, framework: Framework, recipe: Recipe, dtype: str) -> None:
        self.framework, self.recipe, self.dtype = framework, recipe, dtype

    def floats(self) -> list[tuple[str, np.ndarray]]:
        """Arrays of floating point among them, by their places."""
        positional, keywords = self.recipe.arguments()
        found = [*_arrays(positional, ""), *_arrays(keywords, "")]
        return [(name, value.astype(self.dtype)) for name, value in found if value.dtype.kind == "f"]

    def tensors(self, floats: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, with the given tensors for the arrays of floating point."""
        given = iter(floats or [self.framework.from_numpy(value) for _, value in self.floats()])
        positional, keywords = self.recipe.arguments()
        return self._placed(positional, given), self._placed(keywords, given)

    def _placed(self, value: Any, given: Iterator[Any]) -> Any:
        if isinstance(value, np.ndarray):
            return next(given) if value.dtype.kind == "f" else tensors_of(self.framework, value)
        if isinstance(value, dict):
            return {key: self._placed(item, given) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._placed(item, given) for item in value)
        return value


def _arrays(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _arrays(item, f"{path}.{key}" if path else str(key))
