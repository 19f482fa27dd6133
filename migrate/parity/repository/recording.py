"""What the modules of a repository take and give in one forward pass, named by the paths of attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from migrate.sides.framework import Framework
from migrate.sides.outputs import leaves

OUTPUT = "(output)"
"""Name of what the module of a recipe itself gives."""


def named(path: str, call: int, value: Any, framework: Framework) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of an output: the first by the module's path, the others with `:` and their place.

    From the second call on, `@` and its number stand behind the path. What has no elements is recorded by its shape.
    """
    start = path if call == 1 else f"{path}@{call}"
    for number, (leaf, tensor) in enumerate(leaves(value, framework.tensor)):
        yield start if number == 0 else f"{start}:{leaf}", plain(framework.to_numpy(tensor))


def plain(values: np.ndarray) -> np.ndarray:
    """A copy in real numbers that has elements: complex numbers as pairs, nothing as its shape."""
    if np.iscomplexobj(values):
        values = np.stack([values.real, values.imag], axis=-1)
    return values.copy() if values.size else np.array(values.shape or (0,), np.int64)


class Watch:
    """Hooks on submodules; outputs in the order in which they end, inputs of floating point by the same names."""

    def __init__(self, framework: Framework, modules: Mapping[str, Any]) -> None:
        self.framework = framework
        self.outputs: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.calls: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}
        self._handles = []
        for path, module in modules.items():
            self._handles.append(module.register_forward_pre_hook(partial(self._enter, path)))
            self._handles.append(module.register_forward_hook(partial(self._leave, path)))

    def _enter(self, path: str, _module: Any, args: Any) -> None:
        call = self.calls[path] = self.calls.get(path, 0) + 1
        self._open.setdefault(path, []).append(call)
        values = args if isinstance(args, tuple) else (args,)
        for _, tensor in leaves(values, self.framework.tensor):
            array = plain(self.framework.to_numpy(tensor))
            if array.dtype.kind == "f":
                self.inputs[path if call == 1 else f"{path}@{call}"] = array
            return

    def _leave(self, path: str, _module: Any, _args: Any, output: Any) -> None:
        call = self._open[path].pop()
        self.outputs.update(named(path, call, output, self.framework))

    def end(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()


def recorded(framework: Framework, modules: Mapping[str, Any], call: Callable[[], Any]) -> Watch:
    """One forward pass, watched."""
    watch = Watch(framework, modules)
    try:
        output = framework.without_gradients(call)
    finally:
        watch.end()
    watch.outputs.update(named(OUTPUT, 1, output, framework))
    return watch
