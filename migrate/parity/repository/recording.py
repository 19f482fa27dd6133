"""What the modules of a repository take and give in one forward pass, named by the paths of attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from migrate.captures.store import Capture
from migrate.parity.recording import INPUTS
from migrate.sides.framework import Framework
from migrate.sides.outputs import leaves, with_leaves

OUTPUT = "(output)"
"""Name of what the module of a recipe itself gives."""
HUGE = 1e30
BEYOND = "(signs beyond 1e30)"
_REAL, _IDS = ("float", "bfloat"), ("int", "uint")


def named(path: str, call: int, value: Any, framework: Framework) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of an output: the first by the module's path, the others with `:` and their place.

    From the second call on, `@` and its number stand behind the path. What has no elements is recorded by its shape.
    """
    start = path if call == 1 else f"{path}@{call}"
    for number, (leaf, tensor) in enumerate(leaves(value, framework.tensor)):
        yield start if number == 0 else f"{start}:{leaf}", plain(framework.to_numpy(tensor))


def apart(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same, with signs of the elements beyond `HUGE` in tensors of their own, and zeros in their places.

    A mask fills scores with minus infinity, or the lowest number there is; in a norm nothing else would count.
    """
    result: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        huge = np.abs(values) > HUGE if values.dtype.kind == "f" else np.zeros((), bool)
        if huge.any():
            result[f"{name} {BEYOND}"] = np.where(huge, np.sign(values), 0).astype(np.int8)
            values = np.where(huge, values.dtype.type(0), values)
        result[name] = values
    return result


def plain(values: np.ndarray) -> np.ndarray:
    """A copy in real numbers that has elements: complex numbers as pairs, nothing as its shape."""
    if np.iscomplexobj(values):
        values = np.stack([values.real, values.imag], axis=-1)
    return values.copy() if values.size else np.array(values.shape or (0,), np.int64)


class Watch:
    """Hooks on submodules: outputs in the order in which they end, and one input of each by the same names.

    The input is the first tensor of floating point, and if there is none, of whole numbers.
    """

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        """Copies of a module that are made while it runs are watched by the same hooks."""
        return self

    def _enter(self, path: str, _module: Any, args: Any) -> Any:
        call = self.calls[path] = self.calls.get(path, 0) + 1
        self._open.setdefault(path, []).append(call)
        name = path if call == 1 else f"{path}@{call}"
        values = args if isinstance(args, tuple) else (args,)
        given = dict(leaves(values, self.framework.tensor))
        # Without numbers, ids: what an embedding is handed may be wrong as well.
        place = next((leaf for kind in (_REAL, _IDS) for leaf, tensor in given.items() if _is(kind, tensor)), None)
        if place is None:
            return None
        tensor = given[place]
        self.inputs[name] = plain(self.framework.to_numpy(tensor))
        return self.entered(name, values, place)

    def _leave(self, path: str, _module: Any, _args: Any, output: Any) -> Any:
        call = self._open[path].pop()
        mine = dict(named(path, call, output, self.framework))
        self.outputs.update(mine)
        return self.left(list(mine), output)

    def entered(self, name: str, args: tuple[Any, ...], place: str) -> Any:
        """What a module gets instead of its arguments, whose recorded one is at `place`; None: nothing else."""
        return None

    def left(self, names: list[str], output: Any) -> Any:
        """What a module gives instead of its output, whose tensors were recorded under `names`; None: nothing else."""
        return None

    def end(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()


class Forcing(Watch):
    """Hands on what the reference had, so that each module, and each piece of code between them, is judged alone."""

    def __init__(self, framework: Framework, modules: Mapping[str, Any], reference: Capture) -> None:
        super().__init__(framework, modules)
        self.reference = reference
        self.given = {stage: set(reference.names(stage)) for stage in (INPUTS, "F")}

    def entered(self, name: str, args: tuple[Any, ...], place: str) -> Any:
        """The reference's input."""

        def new(leaf: str, tensor: Any) -> Any:
            return self._right(INPUTS, name, tensor) if leaf == place else tensor

        return with_leaves(args, self.framework.tensor, new)

    def left(self, names: list[str], output: Any) -> Any:
        """The reference's output."""
        left = iter(names)
        return with_leaves(output, self.framework.tensor, lambda _, tensor: self._right("F", next(left), tensor))

    def _right(self, stage: str, name: str, tensor: Any) -> Any:
        if name not in self.given[stage]:
            return tensor
        with self.reference.reader(stage) as read:
            values: np.ndarray = read(name)
        # What was recorded otherwise than it is (complex numbers, nothing) stays.
        return self.framework.from_numpy(values).to(tensor.dtype) if values.shape == tuple(tensor.shape) else tensor


def _is(kind: tuple[str, ...], tensor: Any) -> bool:
    return str(tensor.dtype).rpartition(".")[2].lower().startswith(kind)


def recorded(
    framework: Framework, modules: Mapping[str, Any], call: Callable[[], Any], reference: Capture | None = None
) -> Watch:
    """One forward pass, watched; with a reference, every module is fed what its counterpart there had."""
    watch = Watch(framework, modules) if reference is None else Forcing(framework, modules, reference)
    try:
        output = framework.without_gradients(call)
    finally:
        watch.end()
    watch.outputs.update(named(OUTPUT, 1, output, framework))
    return watch
