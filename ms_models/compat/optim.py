"""Optimizers with torch's arithmetic, parameter groups and state dictionaries.

An update takes its gradients either as values, in the order of `optimizer.parameters`,

    grad_fn = mindspore.value_and_grad(forward, None, optimizer.parameters)
    loss, grads = grad_fn(batch)
    optimizer(grads)

or, with `optimizer.step()`, from the `.grad` of the parameters, where `backward.backward_of` adds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops


class Optimizer:
    """Base class: groups, state, and their dictionaries.

    A subclass has `_names`, the names of its state tensors, and `_update(parameter, gradient, group)`. Settings in
    `param_groups` are plain numbers and may be changed between updates.
    """

    _names: tuple[str, ...] = ()
    _saves_step = True

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Parameter, dict[str, Any]] = {}
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

    def __call__(self, grads: Sequence[Tensor | None]) -> None:
        """Update every parameter; None leaves its parameter and state alone.

        Raises:
            ValueError: another number of gradients than parameters.
        """
        if len(grads) != len(self.parameters):
            raise ValueError(f"optimizer has {len(self.parameters)} parameters but got {len(grads)} gradients")
        gradients = iter(grads)
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = next(gradients)
                if gradient is not None:
                    self._update(parameter, -gradient if group.get("maximize") else gradient, group)

    def step(self) -> None:
        """Update with the gradients in the `.grad` of the parameters; a parameter without one is left alone."""
        self([getattr(p, "grad", None) for p in self.parameters])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients in `.grad`, or set them to zero."""
        for parameter in self.parameters:
            if getattr(parameter, "grad", None) is not None:
                parameter.grad = None if set_to_none else ops.zeros_like(parameter.grad)

    def _update(self, parameter: Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} must say how to update a parameter")

    def _state(self, parameter: Parameter) -> dict[str, Any]:
        """State of a parameter; tensors start at zero."""
        state = self.state.get(parameter)
        if state is None:
            state = {"step": 0}
            for name in self._names:
                state[name] = Parameter(ops.zeros_like(parameter), name=f"{name}.{parameter.name}", requires_grad=False)
            self.state[parameter] = state
        return state

    def state_dict(self) -> dict[str, Any]:
        """Settings and state in torch's form: parameters are numbered in the order of `parameters`."""
        numbers = {id(p): i for i, p in enumerate(self.parameters)}
        groups = [{**g, "params": [numbers[id(p)] for p in g["params"]]} for g in self.param_groups]
        state = {}
        for parameter, values in self.state.items():
            entry = {"step": Tensor(float(values["step"]), ms.float32)} if self._saves_step else {}
            state[numbers[id(parameter)]] = entry | {name: _copy(values[name]) for name in self._names}
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings and state, also from a file of the same torch optimizer.

        Raises:
            ValueError: other groups or group sizes than this optimizer has.
        """
        groups = state_dict["param_groups"]
        if [len(g["params"]) for g in groups] != [len(g["params"]) for g in self.param_groups]:
            raise ValueError("loaded state dict has other parameter groups than the optimizer")
        by_number: dict[Any, Parameter] = {}
        for own, loaded in zip(self.param_groups, groups, strict=True):
            by_number.update(zip(loaded["params"], own["params"], strict=True))
            own.update({key: value for key, value in loaded.items() if key != "params"})
        self.state.clear()
        for number, values in state_dict["state"].items():
            state = self._state(by_number[number])
            started = any(values.get(name) is not None for name in self._names)
            state["step"] = int(values.get("step", started))
            for name in self._names:
                if values.get(name) is not None:
                    state[name].set_data(_copy(values[name]).astype(state[name].dtype))


class _AdamBase(Optimizer):
    """Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019)."""

    _names = ("exp_avg", "exp_avg_sq")
    _decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if amsgrad:
            raise ValueError("amsgrad is not implemented")
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError(f"invalid setting: lr {lr}, eps {eps}, betas {betas}, weight_decay {weight_decay}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False}
        super().__init__(params, {**defaults, "maximize": maximize})
        self._adam = ops.Adam()
        self._scalars: tuple[float, ...] = ()
        self._scalar_tensors: list[Tensor] = []

    def _update(self, parameter: Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self._state(parameter)
        state["step"] += 1
        beta1, beta2 = (float(b) for b in group["betas"])
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        if decay and not self._decoupled:
            gradient = gradient + parameter * decay
        # torch: lr / c1 * m / (sqrt(v) / sqrt(c2) + eps) with c = 1 - beta^step. The fused kernel computes
        # lr' * m' / (sqrt(v') + eps'), given beta^step = 0. It has 1 - beta in float32 only, so m' and v' are m and v
        # times a constant near 1 (off by 1e-5 for beta2 = 0.999), which lr' and eps' take out again.
        gain1, gain2 = _gain(beta1), _gain(beta2)
        root = math.sqrt((1 - beta2 ** state["step"]) * gain2)
        rate = lr * root / ((1 - beta1 ** state["step"]) * gain1)
        kept, *arguments = self._tensors(1 - lr * decay, 0.0, 0.0, rate, beta1, beta2, float(group["eps"]) * root)
        if decay and self._decoupled:
            ops.assign(parameter, parameter * kept)
        self._adam(parameter, state["exp_avg"], state["exp_avg_sq"], *arguments, gradient.astype(parameter.dtype))

    def _tensors(self, *scalars: float) -> list[Tensor]:
        """Numbers as tensors, made once for all parameters of a group that are at the same step."""
        if scalars != self._scalars:
            self._scalars, self._scalar_tensors = scalars, [Tensor(np.float32(s)) for s in scalars]
        return self._scalar_tensors


def _copy(tensor: Tensor) -> Tensor:
    # `Tensor(parameter)` would share the memory that the next update overwrites
    return Tensor(tensor).copy()


def _gain(beta: float) -> float:
    """`1 - beta` as the kernel has it, from a float32 beta, over its exact value."""
    return (1.0 - float(np.float32(beta))) / (1.0 - beta)


class Adam(_AdamBase):
    """Adam; `weight_decay` is added to the gradient."""


class AdamW(_AdamBase):
    """AdamW; `weight_decay` shrinks the parameter before the update, by lr * weight_decay."""

    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, dampening and Nesterov's form, as in torch."""

    _names = ("momentum_buffer",)
    _saves_step = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if lr < 0 or momentum < 0 or weight_decay < 0:
            raise ValueError(f"invalid setting: lr {lr}, momentum {momentum}, weight_decay {weight_decay}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "nesterov": nesterov, "maximize": maximize})

    def _update(self, parameter: Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self._state(parameter)
        state["step"] += 1
        if group["weight_decay"]:
            gradient = gradient + parameter * float(group["weight_decay"])
        if momentum := float(group["momentum"]):
            buffer = state["momentum_buffer"]
            first = state["step"] == 1  # torch starts the buffer at the first gradient, undamped
            kept = gradient if first else buffer * momentum + gradient * (1 - float(group["dampening"]))
            ops.assign(buffer, kept)
            gradient = gradient + kept * momentum if group["nesterov"] else kept
        ops.assign(parameter, parameter - gradient * float(group["lr"]))
