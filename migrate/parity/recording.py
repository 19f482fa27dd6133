"""What goes into a module and what comes out of it, the same rule for both frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

INPUTS = "I"
"""Where a capture keeps what went into the modules of stage F; no stage of its own, nothing is expected there."""


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The first argument of a module that has a shape: transformers names it, ms_models does not."""
    return next((value for value in (*args, *kwargs.values()) if hasattr(value, "shape")), None)


def first_output(output: Any) -> Any:
    """What a module returns, without what it returns beside it (caches, weights of attention)."""
    return output[0] if isinstance(output, tuple) else output


def with_first(output: Any, value: Any) -> Any:
    """The output with another first tensor."""
    return (value, *output[1:]) if isinstance(output, tuple) else value


def spread(weights: np.ndarray, chosen: np.ndarray, experts: int) -> np.ndarray:
    """What each of all experts counts for a token, whatever order it has them in.

    Args:
        weights: `[..., k]` of a token's experts.
        chosen: `[..., k]`, which they are.
        experts: how many there are.

    Returns:
        `[..., experts]`, 0 for those that are not chosen; weights of an expert that is chosen twice are summed.
    """
    each = np.arange(experts) == chosen[..., None]
    whole: np.ndarray = (each * weights[..., None]).sum(-2, dtype=weights.dtype)
    return whole


class Recorder:
    """Keeps the first tensor that goes into a module (if it is of floating point) and the first that comes out.

    Attributes:
        inputs: by module, in the order in which computation begins.
        outputs: by module, in the order in which computation ends.
    """

    def __init__(self, to_numpy: Callable[[Any], np.ndarray], outputs: dict[str, np.ndarray] | None = None) -> None:
        self.to_numpy = to_numpy
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: dict[str, np.ndarray] = {} if outputs is None else outputs

    def enter(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A hook before a module; bind `name`."""
        value = first_tensor(args, kwargs)
        if value is None:
            return
        array = self.to_numpy(value)
        if array.dtype.kind == "f":
            self.inputs[name] = array

    def leave(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a module; bind `name`."""
        self.outputs[name] = self.to_numpy(first_output(output))

    def choose(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a router, whose output ends with weights and indices of each token's experts; bind `name`."""
        weights, chosen = (self.to_numpy(value) for value in output[-2:])
        self.outputs[name] = spread(weights, chosen, module.weight.shape[0])
