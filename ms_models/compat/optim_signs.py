"""Rprop and Lion, which go by the sign of the gradient, and ASGD, which averages, with torch's arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindspore import Parameter, Tensor, ops

from .optimizer import Optimizer, check_settings, float32


class Rprop(Optimizer):
    """A step size for each element: it grows while the gradient keeps its sign (Riedmiller and Braun, 1993)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(lr=lr)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"invalid setting: etas {etas}")
        super().__init__(params, {"lr": lr, "etas": etas, "step_sizes": step_sizes, "maximize": maximize})

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        return {"prev": ops.zeros_like(parameter), "step_size": ops.full_like(parameter, float(group["lr"]))}

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        smaller, larger = (float(e) for e in group["etas"])
        least, most = (float(s) for s in group["step_sizes"])
        turned = ops.sign(gradient * state["prev"])
        ones = ops.ones_like(gradient)
        factor = ops.where(turned > 0, ones * larger, ops.where(turned < 0, ones * smaller, ones))
        size = ops.clamp(state["step_size"] * factor, least, most)
        gradient = ops.where(turned < 0, ops.zeros_like(gradient), gradient)
        ops.assign(state["step_size"], size)
        ops.assign(state["prev"], gradient)
        ops.assign(parameter, parameter - ops.sign(gradient) * size)


class Lion(Optimizer):
    """The sign of a momentum (Chen et al., 2023), as in the package lion-pytorch."""

    _names = ("exp_avg",)
    _saves_step = False
    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if lr <= 0 or not all(0 <= beta <= 1 for beta in betas):
            raise ValueError(f"invalid setting: lr {lr}, betas {betas}")
        # the package's word for a decay that does not scale with the initial rate
        self._scale = lr if decoupled_weight_decay else 1.0
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, {**group, "weight_decay": group["weight_decay"] / self._scale})
        beta1, beta2 = (float(b) for b in group["betas"])
        mean = state["exp_avg"]
        direction = ops.sign(mean * beta1 + gradient * (1 - beta1))
        ops.assign(parameter, parameter - direction * float(group["lr"]))
        ops.assign(mean, mean * beta2 + gradient * (1 - beta2))


class ASGD(Optimizer):
    """Gradient descent with falling rates; the average of the parameters is in the state `ax` (Polyak, 1992)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(lr=lr, weight_decay=weight_decay)
        settings = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "maximize": maximize})

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        return {"eta": float32(float(group["lr"])), "mu": 1.0, "ax": ops.zeros_like(parameter)}

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        gradient = self._decayed(parameter, gradient, group)
        lr, decay, eta = float(group["lr"]), float(group["lambd"]), state["eta"]
        new = parameter * (1 - decay * eta) - gradient * eta
        average = state["ax"]
        ops.assign(average, new if state["mu"] == 1 else average + (new - average) * state["mu"])
        ops.assign(parameter, new)
        state["eta"] = float32(lr / (1 + decay * lr * state["step"]) ** float(group["alpha"]))
        state["mu"] = float32(1 / max(1.0, state["step"] - float(group["t0"])))
