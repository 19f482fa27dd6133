"""SGD, Adam and AdamW with torch's arithmetic, parameter groups and state dictionaries.

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

import numpy as np
from mindspore import Parameter, Tensor, ops

from .optimizer import Optimizer, check_settings, moments

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); `weight_decay` is added to the gradient unless `decoupled_weight_decay`."""

    _names = ("exp_avg", "exp_avg_sq")

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
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_settings(betas, lr=lr, eps=eps, weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, {**defaults, "maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay})
        self._adam = ops.Adam()
        self._scalars: tuple[float, ...] = ()
        self._scalar_tensors: list[Tensor] = []

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        state = super()._start(parameter, group)
        return {**state, "max_exp_avg_sq": ops.zeros_like(parameter)} if group["amsgrad"] else state

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        beta1, beta2 = (float(b) for b in group["betas"])
        lr, eps = float(group["lr"]), float(group["eps"])
        correction1, correction2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        if group["amsgrad"]:
            mean, square = moments(state, gradient, beta1, beta2)
            largest = ops.maximum(state["max_exp_avg_sq"], square)
            ops.assign(state["max_exp_avg_sq"], largest)
            update = mean / (ops.sqrt(largest) / math.sqrt(correction2) + eps)
            ops.assign(parameter, parameter - update * (lr / correction1))
            return
        self._adam_step(parameter, gradient, state, self._tensors(*self._kernel_numbers(state["step"], group)))

    def _kernel_numbers(self, step: int, group: dict[str, Any]) -> tuple[float, ...]:
        # torch: lr / c1 * m / (sqrt(v) / sqrt(c2) + eps) with c = 1 - beta^step. The fused kernel computes
        # lr' * m' / (sqrt(v') + eps'), given beta^step = 0. It has 1 - beta in float32 only, so m' and v' are m and v
        # times a constant near 1 (off by 1e-5 for beta2 = 0.999), which lr' and eps' take out again.
        beta1, beta2 = (float(b) for b in group["betas"])
        lr, eps = float(group["lr"]), float(group["eps"])
        correction1, correction2 = 1 - beta1**step, 1 - beta2**step
        gain1, gain2 = _gain(beta1), _gain(beta2)
        root = math.sqrt(correction2 * gain2)
        return 0.0, 0.0, lr * root / (correction1 * gain1), beta1, beta2, eps * root

    def _adam_step(
        self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], numbers: Sequence[Tensor]
    ) -> None:
        self._adam(parameter, state["exp_avg"], state["exp_avg_sq"], *numbers, gradient.astype(parameter.dtype))

    def _numbers(self, step: int, group: dict[str, Any]) -> tuple[float, ...] | None:
        decay = float(group["weight_decay"])
        if group["amsgrad"] or (decay and not group.get("decoupled_weight_decay", self._decoupled)):
            return None
        return 1 - float(group["lr"]) * decay, *self._kernel_numbers(step, group)

    def _apply(
        self,
        parameter: Parameter,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Sequence[Tensor],
        switches: tuple[bool, ...],
    ) -> None:
        ops.assign(parameter, parameter * numbers[0].astype(parameter.dtype))
        self._adam_step(parameter, gradient, state, numbers[1:])

    def _tensors(self, *scalars: float) -> list[Tensor]:
        """Numbers as tensors, made once for all parameters of a group that are at the same step."""
        if scalars != self._scalars:
            self._scalars, self._scalar_tensors = scalars, [Tensor(np.float32(s)) for s in scalars]
        return self._scalar_tensors


def _gain(beta: float) -> float:
    """`1 - beta` as the kernel has it, from a float32 beta, over its exact value."""
    return (1.0 - float(np.float32(beta))) / (1.0 - beta)


class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2019): first, the parameter shrinks by lr * weight_decay."""

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
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True)


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
        check_settings(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "nesterov": nesterov, "maximize": maximize})

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        numbers = self._numbers(state["step"], group)
        self._descend(parameter, gradient, state, numbers[1:], self._switches(state["step"], group))

    def _numbers(self, step: int, group: dict[str, Any]) -> tuple[float, ...]:
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        return float(group["weight_decay"]), float(group["lr"]), momentum, 1 - dampening

    def _switches(self, step: int, group: dict[str, Any]) -> tuple[bool, ...]:
        # torch starts the buffer at the first gradient, undamped
        return bool(group["weight_decay"]), bool(group["momentum"]), step == 1, bool(group["nesterov"])

    def _apply(
        self,
        parameter: Parameter,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Sequence[Tensor],
        switches: tuple[bool, ...],
    ) -> None:
        if switches[0]:
            gradient = gradient + parameter * numbers[0]
        self._descend(parameter, gradient, state, numbers[1:], switches)

    def _descend(
        self,
        parameter: Parameter,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Sequence[Any],
        switches: tuple[bool, ...],
    ) -> None:
        lr, momentum, share = numbers
        _, has_momentum, is_first, is_nesterov = switches
        if has_momentum:
            buffer = state["momentum_buffer"]
            kept = gradient if is_first else buffer * momentum + gradient * share
            ops.assign(buffer, kept)
            gradient = gradient + kept * momentum if is_nesterov else kept
        ops.assign(parameter, parameter - gradient * lr)
