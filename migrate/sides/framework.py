"""The verbs of a framework, and what both sides do with them alike: build a module, watch it, say where it failed."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from migrate.captures.store import first_line
from migrate.sides.recipes import Recipe

INPUT = "input {}"
"""Name of the gradient of an input."""


class NothingReachedError(RuntimeError):
    """The loss depends on nothing that could be trained."""


class Framework(Protocol):
    """The verbs of one framework; see `torch_framework` and `mindspore_framework`."""

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
    def state(self, module: Any) -> dict[str, np.ndarray]: ...
    def load(self, module: Any, values: Mapping[str, np.ndarray]) -> None: ...
    def trainable(self, module: Any) -> dict[str, Any]: ...
    def gradients(
        self, module: Any, loss: Callable[..., Any], inputs: Sequence[Any] = ()
    ) -> tuple[float, dict[str, np.ndarray]]: ...
    def step(self, module: Any, loss: Callable[[], Any], length: float) -> float: ...


def step_scale(gradients: Iterable[np.ndarray], length: float) -> float:
    """Factor of the gradients in a step: `length`, over their common norm where that is above one."""
    return length / max(float(np.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in gradients))), 1.0)


def build(recipe: Recipe) -> Any:
    """The module of a recipe."""
    namespace = vars(importlib.import_module(recipe.module))
    return eval(recipe.build, dict(namespace))


def watch(modules: list[tuple[str, Any]], record: Callable[[str, Any], None]) -> Callable[[], None]:
    """Reports the output of every module as it ends; the result ends that. Both frameworks call such hooks alike."""

    def report(name: str, _module: Any, _args: Any, output: Any) -> None:
        record(name, output)

    handles = [module.register_forward_hook(partial(report, name)) for name, module in modules]

    def stop() -> None:
        for handle in handles:
            handle.remove()

    return stop


def where(error: Exception, root: Path) -> str:
    """The exception, with the last line of the repository that it passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(root))]
    text = first_line(error)
    if not frames:
        return text
    return f"{Path(frames[-1].filename).relative_to(root).as_posix()}:{frames[-1].lineno}: {text}"
