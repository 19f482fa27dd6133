"""The relatives of Adam: Adamax, NAdam and RAdam, with torch's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mindspore import Parameter, Tensor, ops

from .optimizer import Optimizer, check_settings, float32, moments


class Adamax(Optimizer):
    """Adam with the largest gradient in place of the mean square (Kingma and Ba, 2015)."""

    _names = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(betas, lr=lr, eps=eps, weight_decay=weight_decay)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "maximize": maximize})

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        beta1, beta2 = (float(b) for b in group["betas"])
        mean = state["exp_avg"] * beta1 + gradient * (1 - beta1)
        ops.assign(state["exp_avg"], mean)
        largest = ops.maximum(state["exp_inf"] * beta2, ops.abs(gradient) + float(group["eps"]))
        ops.assign(state["exp_inf"], largest)
        rate = float(group["lr"]) / (1 - beta1 ** state["step"])
        ops.assign(parameter, parameter - mean / largest * rate)


class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat, 2016); the momentum grows with the step by `momentum_decay`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(betas, lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        more = {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, {**settings, **more, "maximize": maximize})

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        zeros = ops.zeros_like(parameter)
        return {"mu_product": 1.0, "exp_avg": zeros, "exp_avg_sq": zeros.copy()}

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        beta1, beta2 = (float(b) for b in group["betas"])
        lr, decay, step = float(group["lr"]), float(group["momentum_decay"]), state["step"]
        momentum, following = (beta1 * (1 - 0.5 * 0.96 ** (n * decay)) for n in (step, step + 1))
        state["mu_product"] = product = float32(state["mu_product"] * momentum)
        mean, square = moments(state, gradient, beta1, beta2)
        root = ops.sqrt(square / (1 - beta2**step)) + float(group["eps"])
        update = gradient * (lr * (1 - momentum) / (1 - product)) + mean * (lr * following / (1 - product * following))
        ops.assign(parameter, parameter - update / root)


class RAdam(Optimizer):
    """Adam that waits until its mean square is reliable (Liu et al., 2020); until then it is momentum alone."""

    _names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(betas, lr=lr, eps=eps, weight_decay=weight_decay)
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize})

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        beta1, beta2 = (float(b) for b in group["betas"])
        step = state["step"]
        mean, square = moments(state, gradient, beta1, beta2)
        update = mean * (float(group["lr"]) / (1 - beta1**step))
        correction = 1 - beta2**step
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * step * beta2**step / correction
        if length > 5:
            rectified = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            update = update * math.sqrt(rectified * correction) / (ops.sqrt(square) + float(group["eps"]))
        ops.assign(parameter, parameter - update)
