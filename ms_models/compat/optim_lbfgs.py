"""`LBFGS`: a quasi-Newton method that asks a closure for the loss and its gradient, with torch's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from .optimizer import Optimizer, check_settings, copy_of
from .wolfe import strong_wolfe

Vector = np.ndarray[Any, Any]


class LBFGS(Optimizer):
    """Limited-memory BFGS (Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 7.5).

    `step` needs a closure that clears the gradients, leaves new ones in `.grad` (as a function of
    `backward.backward_of` does) and returns the loss. It is called several times. The method's own vectors are numpy
    arrays on the host: hundreds of scalar products per step would each wait for the device.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_settings(lr=lr)
        settings = {"lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval}
        settings |= {"tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        super().__init__(params, {**settings, "history_size": history_size, "line_search_fn": line_search_fn})
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    def __call__(self, grads: Any) -> None:
        raise TypeError("LBFGS needs step(closure): it evaluates the loss several times")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Up to `max_iter` iterations with at most about `max_eval` calls of the closure; the first loss."""
        if closure is None:
            raise TypeError("LBFGS.step() needs a closure that computes the loss and its gradients")
        group = self.param_groups[0]
        rate, most, change = float(group["lr"]), group["max_iter"], group["tolerance_change"]
        state = self.state[self.parameters[0]]
        for counter in ("func_evals", "n_iter"):
            state.setdefault(counter, 0)
        first = closure()
        loss, evaluations = _number(first), 1
        state["func_evals"] += 1
        gradient = self._gradient()
        if _largest(gradient) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, most + 1):
            state["n_iter"] += 1
            direction = self._direction(state, gradient, group["history_size"])
            state["prev_flat_grad"], state["prev_loss"] = gradient, loss
            begin = min(1.0, 1.0 / float(np.abs(gradient).sum())) if state["n_iter"] == 1 else 1.0
            state["d"], state["t"] = direction, begin * rate
            slope = dot(gradient, direction)
            if slope > -change:
                break
            calls = 0
            if group["line_search_fn"] is not None:
                loss, gradient, state["t"], calls = self._search(
                    closure, direction, state["t"], (loss, gradient, slope), group["max_eval"] - evaluations
                )
                self._move(state["t"], direction)
            else:
                self._move(state["t"], direction)
                if iteration != most:
                    loss, gradient, calls = _number(closure()), self._gradient(), 1
            evaluations += calls
            state["func_evals"] += calls
            flat = _largest(gradient) <= group["tolerance_grad"]
            small = _largest(direction) * state["t"] <= change or abs(loss - state["prev_loss"]) < change
            if evaluations >= group["max_eval"] or flat or small:
                break
        return first

    def _direction(self, state: dict[str, Any], gradient: Vector, history: int) -> Vector:
        """Minus the gradient times the approximate inverse Hessian, after taking in the last move."""
        if state["n_iter"] == 1:
            state.update({"old_dirs": [], "old_stps": [], "ro": [], "H_diag": 1})
            return -gradient
        change, move = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = dot(change, move)
        changes, moves, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        if curvature > 1e-10:
            if len(changes) == history:
                for kept in (changes, moves, inverses):
                    kept.pop(0)
            changes.append(change)
            moves.append(move)
            inverses.append(1.0 / curvature)
            state["H_diag"] = curvature / dot(change, change)
        direction, shares = -gradient, []
        for y, s, inverse in zip(reversed(changes), reversed(moves), reversed(inverses), strict=True):
            shares.append(dot(s, direction) * inverse)
            direction = direction - y * shares[-1]
        direction = direction * state["H_diag"]
        for y, s, inverse, share in zip(changes, moves, inverses, reversed(shares), strict=True):
            direction = direction + s * (share - dot(y, direction) * inverse)
        return direction

    def _search(
        self, closure: Callable[[], Any], direction: Vector, t: float, start: tuple[float, Vector, float], most: int
    ) -> tuple[float, Vector, float, int]:
        if self.param_groups[0]["line_search_fn"] != "strong_wolfe":
            raise RuntimeError("only 'strong_wolfe' is supported")
        places = [copy_of(parameter) for parameter in self.parameters]

        def evaluate(length: float) -> tuple[float, Vector, float]:
            self._move(length, direction)
            loss, gradient = _number(closure()), self._gradient()
            for parameter, place in zip(self.parameters, places, strict=True):
                ops.assign(parameter, place)
            return loss, gradient, dot(gradient, direction)

        tolerance = self.param_groups[0]["tolerance_change"]
        return strong_wolfe(evaluate, t, start, _largest(direction), tolerance, most)

    def _gradient(self) -> Vector:
        """The gradients of all parameters as one vector; zeros for a parameter without one."""
        held = [(parameter, getattr(parameter, "grad", None)) for parameter in self.parameters]
        return np.concatenate([_vector(ops.zeros_like(p) if g is None else g) for p, g in held])

    def _move(self, length: float, direction: Vector) -> None:
        begin = 0
        for parameter in self.parameters:
            size = parameter.numel()
            part = direction[begin : begin + size].reshape(parameter.shape)
            ops.assign(parameter, parameter + Tensor(part * length).astype(parameter.dtype))
            begin += size

    def _saved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._saved(item) for item in value]
        return Tensor(value.copy()) if isinstance(value, np.ndarray) else value

    def _loaded(self, parameter: Parameter, values: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        kept = {name: _held(value) for name, value in values.items() if name != "al"}
        return kept


def dot(a: Vector, b: Vector) -> float:
    """Sum of products, as a number."""
    return float(np.dot(a, b))


def _largest(vector: Vector) -> float:
    return float(np.abs(vector).max())


def _vector(tensor: Tensor) -> Vector:
    exact = tensor if tensor.dtype in (ms.float32, ms.float64) else tensor.astype(ms.float32)
    return exact.asnumpy().reshape(-1)


def _held(value: Any) -> Any:
    """Part of a loaded state: vectors as arrays, numbers (some are tensors in torch) as numbers."""
    if isinstance(value, list):
        return [_held(item) for item in value]
    if isinstance(value, Tensor):
        return _vector(value).copy() if value.ndim else _number(value)
    return value


def _number(value: Any) -> float:
    return float(value.asnumpy().reshape(())) if isinstance(value, ms.Tensor) else float(value)
