"""Activation modules whose arguments differ from MindSpore's."""

from __future__ import annotations

from mindspore import Tensor, ops

from .module import Module


class GELU(Module):
    """Gaussian error linear unit; `approximate` is `none` (torch's default, exact) or `tanh`."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
        self.approximate = approximate

    def construct(self, input: Tensor) -> Tensor:
        return ops.gelu(input, approximate=self.approximate)


class Softmax(Module):
    """Softmax along `dim`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Tensor) -> Tensor:
        return ops.softmax(input, self.dim)
