"""RMSprop, Adagrad and Adadelta: gradients over the root of their squares, with torch's arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindspore import Parameter, Tensor, ops

from .optimizer import Optimizer, check_settings


class RMSprop(Optimizer):
    """Gradient over the root of its running mean square (Tieleman and Hinton, 2012), centred or with momentum."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        settings = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered}
        super().__init__(params, {**settings, "weight_decay": weight_decay, "maximize": maximize})

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        names = ["square_avg", *["momentum_buffer"] * bool(group["momentum"]), *["grad_avg"] * bool(group["centered"])]
        return {name: ops.zeros_like(parameter) for name in names}

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        alpha = float(group["alpha"])
        square = state["square_avg"] * alpha + gradient * gradient * (1 - alpha)
        ops.assign(state["square_avg"], square)
        if group["centered"]:
            mean = state["grad_avg"] * alpha + gradient * (1 - alpha)
            ops.assign(state["grad_avg"], mean)
            square = square - mean * mean
        update = gradient / (ops.sqrt(square) + float(group["eps"]))
        if group["momentum"]:
            update = state["momentum_buffer"] * float(group["momentum"]) + update
            ops.assign(state["momentum_buffer"], update)
        ops.assign(parameter, parameter - update * float(group["lr"]))


class Adagrad(Optimizer):
    """Gradient over the root of the sum of its squares (Duchi et al., 2011)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        settings = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        start = {"initial_accumulator_value": initial_accumulator_value}
        super().__init__(params, {**settings, **start, "maximize": maximize})

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        return {"sum": ops.full_like(parameter, float(group["initial_accumulator_value"]))}

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        total = state["sum"] + gradient * gradient
        ops.assign(state["sum"], total)
        rate = float(group["lr"]) / (1 + (state["step"] - 1) * float(group["lr_decay"]))
        ops.assign(parameter, parameter - gradient / (ops.sqrt(total) + float(group["eps"])) * rate)


class Adadelta(Optimizer):
    """Steps as large as the running mean of the steps before (Zeiler, 2012)."""

    _names = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)
        settings = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "maximize": maximize})

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        rho, eps = float(group["rho"]), float(group["eps"])
        square = state["square_avg"] * rho + gradient * gradient * (1 - rho)
        ops.assign(state["square_avg"], square)
        delta = ops.sqrt(state["acc_delta"] + eps) / ops.sqrt(square + eps) * gradient
        ops.assign(state["acc_delta"], state["acc_delta"] * rho + delta * delta * (1 - rho))
        ops.assign(parameter, parameter - delta * float(group["lr"]))
