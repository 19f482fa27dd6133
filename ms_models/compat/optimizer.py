"""`Optimizer`: what all optimizers share: parameter groups, state, the loop over gradients, and dictionaries."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, _no_grad, ops

from .recorded import Recorded, is_on
from .whole import own_like, whole_like


class Optimizer:
    """Base class with torch's interface.

    A subclass names its state tensors in `_names` (they start at zero) or overrides `_start`, and defines
    `_update(parameter, gradient, state, group)`. Settings in `param_groups` are plain numbers and may be changed
    between updates.
    """

    _names: tuple[str, ...] = ()
    _saves_step = True
    _decoupled = False
    """Whether `weight_decay` shrinks the parameter instead of being added to the gradient."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Parameter, dict[str, Any]] = defaultdict(dict)
        self._recorded = Recorded()
        items = list(params)
        if not items:
            raise ValueError("optimizer got an empty parameter list")
        for group in items if isinstance(items[0], dict) else [{"params": items}]:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with their own settings; settings not given are the optimizer's defaults."""
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else [p[1] if isinstance(p, tuple) else p for p in params]
        known = {id(p) for p in self.parameters}
        for parameter in params:
            if not isinstance(parameter, Parameter):
                raise TypeError(f"optimizer can only optimize Parameters, not {type(parameter).__name__}")
            if id(parameter) in known:
                raise ValueError(f"parameter {parameter.name} appears in more than one parameter group")
            known.add(id(parameter))
        self.param_groups.append({**self.defaults, **group, "params": params})

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters, group after group: the order in which `optimizer(grads)` takes the gradients."""
        return [p for group in self.param_groups for p in group["params"]]

    @_no_grad()
    def __call__(self, grads: Sequence[Tensor | None]) -> None:
        """Update every parameter; None leaves its parameter and state alone.

        Raises:
            ValueError: another number of gradients than parameters.
        """
        if len(grads) != len(self.parameters):
            raise ValueError(f"optimizer has {len(self.parameters)} parameters but got {len(grads)} gradients")
        gradients = iter(grads)
        for group in self.param_groups:
            given = [
                (p, g) for p, g in zip(group["params"], itertools.islice(gradients, len(group["params"])), strict=True)
            ]
            given = [(p, -g if group.get("maximize") else g) for p, g in given if g is not None]
            if not (is_on() and self._update_together(group, given)):
                for parameter, gradient in given:
                    state = self._state(parameter, group)
                    state["step"] += 1
                    self._update(parameter, gradient, state, group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update with the gradients in the `.grad` of the parameters; a parameter without one is left alone.

        Args:
            closure: called first; leaves gradients in `.grad`, as a function of `backward.backward_of` does.

        Returns:
            What the closure returns.
        """
        loss = closure() if closure is not None else None
        self([getattr(p, "grad", None) for p in self.parameters])
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients in `.grad`, or set them to zero."""
        for parameter in self.parameters:
            if getattr(parameter, "grad", None) is not None:
                parameter.grad = None if set_to_none else ops.zeros_like(parameter.grad)

    def _numbers(self, step: int, group: dict[str, Any]) -> tuple[float, ...] | None:
        """What an update depends on besides tensors, for optimizers with `_apply`; None for settings it cannot take."""
        return None

    def _switches(self, step: int, group: dict[str, Any]) -> tuple[bool, ...]:
        """What decides between ways to update; each combination is a graph of its own."""
        return ()

    def _apply(
        self,
        parameter: Parameter,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Sequence[Tensor],
        switches: tuple[bool, ...],
    ) -> None:
        """`_update`, with the numbers of `_numbers` as tensors: a graph takes other learning rates as they come."""
        raise NotImplementedError

    def _update_together(self, group: dict[str, Any], given: list[tuple[Parameter, Tensor]]) -> bool:
        """Update a group by one graph; False, and nothing done, where its optimizer or its settings do not allow it."""
        states = [self._state(parameter, group) for parameter, _ in given]
        steps = {state["step"] for state in states}
        is_plain = len(steps) == 1 and all(parameter.dtype == ms.float32 for parameter, _ in given)
        numbers = self._numbers(min(steps) + 1, group) if is_plain else None
        if numbers is None:
            return False
        switches = self._switches(min(steps) + 1, group)
        for state in states:
            state["step"] += 1
        parameters = [parameter for parameter, _ in given]
        held = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        scalars = [Tensor(np.float32(number)) for number in numbers]
        count = len(scalars)

        def update(*tensors: Tensor) -> Tensor:
            taken, gradients = tensors[:count], tensors[count : count + len(parameters)]
            for parameter, gradient, state in zip(parameters, gradients, states, strict=True):
                self._apply(parameter, gradient, state, taken, switches)
            return taken[0] + 0

        key = (switches, tuple(map(id, parameters)), tuple(map(id, held)))
        self._recorded(key, update, [*scalars, *(gradient for _, gradient in given), *parameters, *held])
        return True

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must say how to update a parameter")

    def _decayed(self, parameter: Parameter, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Apply `weight_decay`: to the parameter when decoupled, otherwise to the gradient that is returned."""
        decay = float(group["weight_decay"])
        if not decay:
            return gradient
        if group.get("decoupled_weight_decay", self._decoupled):
            ops.assign(parameter, parameter * (1 - float(group["lr"]) * decay))
            return gradient
        return gradient + parameter * decay

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        """State before the first update: tensors, or numbers that torch keeps as float32."""
        return {name: ops.zeros_like(parameter) for name in self._names}

    def _state(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name, value in self._start(parameter, group).items():
                held = isinstance(value, Tensor)
                state[name] = Parameter(value, name=f"{name}.{parameter.name}", requires_grad=False) if held else value
        return state

    def state_dict(self) -> dict[str, Any]:
        """Settings and state in torch's form: parameters are numbered in the order of `parameters`."""
        numbers = {id(p): i for i, p in enumerate(self.parameters)}
        groups = [{**g, "params": [numbers[id(p)] for p in g["params"]]} for g in self.param_groups]
        state = {}
        for parameter, values in self.state.items():
            kept = {name: value for name, value in values.items() if name != "step" or self._saves_step}
            state[numbers[id(parameter)]] = {
                name: whole_like(parameter, self._saved(value)) for name, value in kept.items()
            }
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def _saved(self, value: Any) -> Any:
        own = type(self)._update is not Optimizer._update
        if own and isinstance(value, int | float):
            return Tensor(float(value), ms.float32)
        return copy_of(value) if isinstance(value, Tensor) else value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings and state, also from a file of the same torch optimizer.

        Raises:
            ValueError: other groups or group sizes than this optimizer has.
        """
        groups = state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("loaded state dict has other parameter groups than the optimizer")
        places: dict[Any, tuple[Parameter, dict[str, Any]]] = {}
        for own, loaded in zip(self.param_groups, groups, strict=True):
            places.update((n, (p, own)) for n, p in zip(loaded["params"], own["params"], strict=True))
            own.update({key: value for key, value in loaded.items() if key != "params"})
        self.state.clear()
        for number, values in state_dict["state"].items():
            parameter, group = places[number]
            self.state[parameter].update(self._loaded(parameter, values, group))

    def _loaded(self, parameter: Parameter, values: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        if type(self)._update is Optimizer._update:  # a user's optimizer: its state is its own affair
            return {name: copy_of(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        state = self._state(parameter, group)
        given = {name: values[name] for name in state if values.get(name) is not None}
        state["step"] = int(given.pop("step", bool(given)))
        for name, value in given.items():
            if isinstance(state[name], Tensor):
                state[name].set_data(own_like(parameter, copy_of(value)).astype(state[name].dtype))
            else:
                state[name] = float(value)
        return state


def copy_of(tensor: Tensor) -> Tensor:
    """A tensor of its own: `Tensor(parameter)` would share the memory that the next update overwrites."""
    return Tensor(tensor).copy()


def check_settings(betas: Sequence[float] = (), **settings: float) -> None:
    """Refuse negative settings and betas outside [0, 1).

    Raises:
        ValueError: names the setting and its value.
    """
    for name, value in settings.items():
        if value < 0:
            raise ValueError(f"invalid setting: {name} {value}")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"invalid setting: betas {betas}")


def float32(value: float) -> float:
    """A number rounded as torch rounds the scalars of an optimizer's state."""
    return float(np.float32(value))


def moments(state: dict[str, Any], gradient: Tensor, beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """Move `exp_avg` and `exp_avg_sq` towards the gradient and its square; their new values."""
    mean = state["exp_avg"] + (gradient - state["exp_avg"]) * (1 - beta1)
    square = state["exp_avg_sq"] * beta2 + gradient * gradient * (1 - beta2)
    ops.assign(state["exp_avg"], mean)
    ops.assign(state["exp_avg_sq"], square)
    return mean, square
