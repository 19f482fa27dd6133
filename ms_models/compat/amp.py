"""Autocast regions and loss scaling."""

from __future__ import annotations

import contextlib
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .optim import Optimizer


class autocast(contextlib.ContextDecorator):
    """A region that computes in the data types of its inputs: MindSpore has no autocast, so nothing is rounded down.

    Losses and gradients are those of torch with `enabled=False`. Context and decorator.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> autocast:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def is_autocast_enabled() -> bool:
    """Whether types are changed by a region: they never are."""
    return False


class GradScaler:
    """Scales the loss, takes the factor out of `.grad` again, and skips updates whose gradients are not finite.

    The factor follows torch's rule: times `backoff_factor` after an overflow, times `growth_factor` after
    `growth_interval` updates without one.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1.0 or backoff_factor >= 1.0:
            raise ValueError(f"growth factor {growth_factor} must be > 1 and backoff factor {backoff_factor} < 1")
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._growth_tracker = growth_interval, 0
        self._overflow: dict[int, bool] = {}  # optimizers whose gradients are unscaled, since the last update()

    def scale(self, outputs: Any) -> Any:
        """Outputs times the factor: a tensor, or a list or tuple of tensors."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(o) for o in outputs)
        return outputs * self._scale

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the `.grad` of an optimizer's parameters by the factor.

        Raises:
            RuntimeError: called twice since the last `update()`.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._overflow:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        overflow = False
        for parameter in optimizer.parameters:
            gradient: Tensor | None = getattr(parameter, "grad", None)
            if gradient is not None:
                parameter.grad = gradient * (1.0 / self._scale)
                overflow = overflow or not bool(ops.isfinite(gradient.astype(ms.float32)).all())
        self._overflow[id(optimizer)] = overflow

    def step(self, optimizer: Optimizer) -> Any:
        """`optimizer.step()`, unless a gradient is not finite."""
        if self._enabled:
            if id(optimizer) not in self._overflow:
                self.unscale_(optimizer)
            if self._overflow[id(optimizer)]:
                return None
        return optimizer.step()

    def update(self, new_scale: float | None = None) -> None:
        """Adapt the factor after the steps of an iteration, or set it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif any(self._overflow.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                self._scale *= self._growth_factor
                self._growth_tracker = 0
        self._overflow.clear()

    def get_scale(self) -> float:
        """The factor; 1 when disabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The factor and its rule; empty when disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            RuntimeError: the state is empty, being that of a disabled scaler.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The source state dict is empty: it was saved from a disabled GradScaler.")
        self._scale = float(state_dict["scale"])
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval, self._growth_tracker = state_dict["growth_interval"], state_dict["_growth_tracker"]
