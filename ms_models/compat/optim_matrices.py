"""Adafactor and Muon, which treat a parameter as a matrix, with torch's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from .optimizer import Optimizer, check_settings


class Adafactor(Optimizer):
    """Mean squares of rows and columns instead of elements (Shazeer and Stern, 2018), in torch's form."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_settings(lr=lr, eps1=eps[0] or 0.0, eps2=eps[1], weight_decay=weight_decay)
        if beta2_decay > 0 or d < 1:
            raise ValueError(f"invalid setting: beta2_decay {beta2_decay}, d {d}")
        settings = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d}
        super().__init__(params, {**settings, "weight_decay": weight_decay, "maximize": maximize})

    _decoupled = True

    def _start(self, parameter: Parameter, group: dict[str, Any]) -> dict[str, Any]:
        shape = tuple(parameter.shape)
        if len(shape) < 2:
            return {"variance": ops.zeros_like(parameter)}
        rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
        return {"row_var": ops.zeros(rows, dtype=parameter.dtype), "col_var": ops.zeros(columns, dtype=parameter.dtype)}

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        least, smallest = group["eps"]
        if least is None:
            least = _EPSILON[parameter.dtype]
        lr, share = float(group["lr"]), state["step"] ** float(group["beta2_decay"])
        rate = max(float(smallest), _root_mean_square(parameter)) * min(lr, 1 / math.sqrt(state["step"]))
        self._decayed(parameter, gradient, group)
        squares = gradient * gradient
        if parameter.ndim < 2:
            estimate = _moved(state["variance"], squares, share)
        else:
            rows = _moved(state["row_var"], squares.mean(-1, True), share)
            columns = _moved(state["col_var"], squares.mean(-2, True), share)
            estimate = ops.matmul(rows, columns) / ops.clamp(rows.mean(-2, True), min=least)
        update = gradient * ops.rsqrt(ops.clamp(estimate, min=least * least))
        clip = max(1.0, _root_mean_square(update) / float(group["d"]))
        ops.assign(parameter, parameter - update * (rate / clip))


_EPSILON = {ms.float16: 2.0**-10, ms.bfloat16: 2.0**-7, ms.float32: 2.0**-23, ms.float64: 2.0**-52}


def _root_mean_square(x: Tensor) -> float:
    return float(ops.sqrt((x * x).sum())) / math.sqrt(x.size)


def _moved(average: Parameter, value: Tensor, share: float) -> Tensor:
    new = average + (value - average) * share
    ops.assign(average, new)
    return new


class Muon(Optimizer):
    """Momentum made orthogonal by Newton-Schulz steps (Jordan et al., 2024); for parameters that are matrices."""

    _names = ("momentum_buffer",)
    _saves_step = False
    _decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check_settings(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"adjust_lr_fn {adjust_lr_fn!r} is neither original nor match_rms_adamw")
        settings = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        more = {"ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        super().__init__(params, {**settings, **more})
        for parameter in self.parameters:
            if parameter.ndim != 2:
                raise ValueError(f"Muon only supports 2D parameters, not one of shape {parameter.shape}")

    def _update(self, parameter: Parameter, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        momentum = float(group["momentum"])
        update = kept = _moved(state["momentum_buffer"], gradient, 1 - momentum)
        if group["nesterov"]:
            update = gradient + (kept - gradient) * momentum
        update = _orthogonal(update, group["ns_coefficients"], group["ns_steps"], float(group["eps"]))
        height, width = parameter.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            rate = 0.2 * math.sqrt(max(height, width))
        else:
            rate = math.sqrt(max(1, height / width))
        self._decayed(parameter, gradient, group)
        ops.assign(parameter, parameter - update.astype(parameter.dtype) * (float(group["lr"]) * rate))


def _orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The nearest orthogonal matrix, roughly; values are rounded to bfloat16 where torch stores them."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = _rounded(matrix.T if tall else matrix)
    x = _rounded(x / ops.clamp(_rounded(ops.sqrt((x * x).sum())), min=eps))
    for _ in range(steps):
        gram = _rounded(ops.matmul(x, x.T))
        change = _rounded(gram * b + ops.matmul(gram, gram) * c)
        x = _rounded(x * a + ops.matmul(change, x))
    return x.T if tall else x


def _rounded(x: Tensor) -> Tensor:
    return x.astype(ms.bfloat16).astype(ms.float32)
