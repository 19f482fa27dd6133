"""MindSpore, as a side of a comparison uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate.captures.store import Capture
from migrate.sides.framework import INPUT, step_scale

if TYPE_CHECKING:
    import mindspore as ms


class MindSpore:
    """MindSpore, PyNative."""

    def __init__(self) -> None:
        import mindspore

        mindspore.runtime.launch_blocking()  # otherwise an error surfaces at a later line and blames another stage
        self.ms = mindspore
        self.tensor = mindspore.Tensor

    def seed(self, value: int) -> None:
        """Seeds every random generator of the framework."""
        self.ms.manual_seed(value)

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return {"mindspore": self.ms.__version__, "numpy": np.__version__}

    def from_numpy(self, values: np.ndarray) -> ms.Tensor:
        """Array to tensor."""
        return self.ms.Tensor(values)

    def to_numpy(self, value: ms.Tensor) -> np.ndarray:
        """Tensor to array; bfloat16, which numpy lacks, becomes float32."""
        return (value.float() if value.dtype == self.ms.bfloat16 else value).asnumpy()

    def set_mode(self, module: Any, training: bool) -> None:
        """Training or evaluation mode."""
        if hasattr(module, "train"):
            module.train(training)  # which the class may have made its own
        else:
            module.set_train(training)

    def weights(self, module: Any, reference: Path | None) -> dict[str, np.ndarray]:
        """Loads the reference's state where names and shapes agree, and gives the state from before, by name."""
        found = self.state(module)
        assert reference is not None, "the MindSpore side follows a PyTorch side"
        capture = Capture.read(reference)
        with capture.reader("weights") as get:
            self.load(module, {name: get(name) for name in capture.names("weights")})
        return found

    def state(self, module: Any) -> dict[str, np.ndarray]:
        """Copies of the whole state."""
        return {name: self.to_numpy(value).copy() for name, (value, _) in _state(module)}

    def load(self, module: Any, values: Mapping[str, np.ndarray]) -> None:
        """Sets what `values` names of the state, where the shapes agree, in the dtypes of the module."""
        state = dict(_state(module))
        for name, given in values.items():
            if name in state and tuple(state[name][0].shape) == given.shape:
                value, assign = state[name]
                assign(self.ms.Tensor(np.array(given, order="C")).astype(value.dtype))

    def without_gradients(self, call: Callable[[], Any]) -> Any:
        """The result of a call that is not recorded."""
        return call()

    def submodules(self, module: Any) -> list[tuple[str, Any]]:
        """Everything below a cell, by name."""
        return [(path, cell) for path, cell in _cells(module, seen=set()) if path]

    def gradients(
        self, module: Any, loss: Callable[..., Any], inputs: Sequence[Any] = ()
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The loss and the gradient of every trainable parameter, and those of inputs."""
        value, gradients = self._differentiate(module, loss, inputs)
        return value, {name: self.to_numpy(gradient) for name, (_, gradient) in gradients.items()}

    def step(self, module: Any, loss: Callable[[], Any], length: float) -> float:
        """One descent step; the loss before it."""
        value, gradients = self._differentiate(module, loss)
        scale = step_scale((self.to_numpy(gradient) for _, gradient in gradients.values()), length)
        for parameter, gradient in gradients.values():
            self.ms.ops.assign(parameter, parameter - gradient * scale)
        return value

    def trainable(self, module: Any) -> dict[str, Any]:
        """Parameters that are trained, by the names of attributes; each once."""
        named: dict[int, tuple[str, Any]] = {}
        for path, cell in _cells(module, seen=set()):
            for name, parameter in cell._params.items():
                if parameter is not None and parameter.requires_grad:
                    named.setdefault(id(parameter), (f"{path}.{name}" if path else name, parameter))
        return dict(named.values())

    def _differentiate(
        self, module: Any, loss: Callable[..., Any], inputs: Sequence[Any] = ()
    ) -> tuple[float, dict[str, tuple[Any, ms.Tensor]]]:
        from mindspore.graph.api import _pynative_executor

        named = self.trainable(module)
        if not named and not inputs:
            return float(loss().asnumpy()), {}

        def of_copies(*values: Any) -> Any:
            return loss(*(value * 1 for value in values))  # the module may write into its input

        places = tuple(range(len(inputs))) or None
        try:
            value, found = self.ms.value_and_grad(of_copies, places, list(named.values()) or None)(*inputs)
        except Exception:
            # What was recorded until then stays open otherwise, and the next gradient, of another module, would be
            # taken for one of a gradient.
            _pynative_executor.clear_res()
            raise
        of_inputs, of_parameters = found if inputs and named else (found, ()) if inputs else ((), found)
        gradients = dict(zip(named, zip(named.values(), of_parameters, strict=True), strict=True))
        # The gradient of a single input comes bare.
        pairs = zip(inputs, of_inputs if isinstance(of_inputs, tuple) else (of_inputs,), strict=True)
        return float(value.asnumpy()), gradients | {INPUT.format(i): pair for i, pair in enumerate(pairs)}


def _cells(cell: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Cells by the names of attributes; `cells_and_names` of a list would add its own prefixes.

    With `seen`, each comes once; without it a shared cell comes under all its names.
    """
    if seen is not None:
        if id(cell) in seen:
            return
        seen.add(id(cell))
    yield path, cell
    for name, child in cell._cells.items():
        if child is not None:
            yield from _cells(child, f"{path}.{name}" if path else name, seen)


def _state(module: Any) -> Iterator[tuple[str, tuple[Any, Callable[[Any], None]]]]:
    """Name, value and assignment of everything that belongs to a state dict, under all its names."""
    names = set(module.state_dict())
    for path, cell in _cells(module):
        start = f"{path}." if path else ""
        for name, parameter in cell._params.items():
            if parameter is not None and start + name in names:
                yield start + name, (parameter, parameter.set_data)
        for name, buffer in getattr(cell, "_buffers", {}).items():
            if buffer is not None and start + name in names:
                yield start + name, (buffer, partial(cell._buffers.__setitem__, name))
