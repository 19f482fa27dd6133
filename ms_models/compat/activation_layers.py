"""Activations as modules; their functions are in `activations.py` or are MindSpore's own."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops

from . import activations
from .module import Module


class LogSoftmax(Module):
    """Logarithm of softmax along `dim`; without it along axis 0 of one or three axes, else axis 1, as in torch."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def _axis(self, input: Tensor) -> int:
        if self.dim is not None:
            return self.dim
        return 0 if input.ndim in (0, 1, 3) else 1

    def construct(self, input: Tensor) -> Tensor:
        dim = self._axis(input)
        shifted = input - ops.stop_gradient(ops.max(input, dim, True)[0])  # the kernel is off by 3e-6
        return shifted - ops.log(ops.exp(shifted).sum(dim, True))


class Softmin(LogSoftmax):
    """Softmax of the negative along `dim`."""

    def construct(self, input: Tensor) -> Tensor:
        return activations.softmin(input, self._axis(input))


class Softmax2d(Module):
    """Softmax over the channels of `[N, C, H, W]` or `[C, H, W]`."""

    def construct(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return ops.softmax(input, -3)


class GLU(Module):
    """First half along `dim`, times the sigmoid of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def construct(self, input: Tensor) -> Tensor:
        return activations.glu(input, self.dim)


class CELU(Module):
    """`max(0, x) + min(0, alpha (exp(x / alpha) - 1))`."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def construct(self, input: Tensor) -> Tensor:
        return ops.celu(input, self.alpha)


class Hardshrink(Module):
    """`x` outside of `[-lambd, lambd]`, 0 inside."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def construct(self, input: Tensor) -> Tensor:
        return activations.hardshrink(input, self.lambd)


class Softshrink(Hardshrink):
    """`x` moved towards 0 by `lambd`, 0 in between."""

    def construct(self, input: Tensor) -> Tensor:
        return activations.softshrink(input, self.lambd)


class Hardtanh(Module):
    """`x` cut to `[min_val, max_val]`."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        super().__init__()
        if max_val <= min_val:
            raise AssertionError(f"max_val {max_val} must be larger than min_val {min_val}")
        self.min_val, self.max_val = min_val, max_val

    def construct(self, input: Tensor) -> Tensor:
        return activations.hardtanh(input, self.min_val, self.max_val)


class Threshold(Module):
    """`x` above `threshold`, elsewhere `value`."""

    def __init__(self, threshold: float, value: float) -> None:
        super().__init__()
        self.threshold, self.value = threshold, value

    def construct(self, input: Tensor) -> Tensor:
        return activations.threshold(input, self.threshold, self.value)


class Softplus(Module):
    """`log(1 + exp(beta x)) / beta`, `x` itself above `threshold / beta`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def construct(self, input: Tensor) -> Tensor:
        return activations.softplus(input, self.beta, self.threshold)


class RReLU(Module):
    """Leaky ReLU whose slope is drawn in training."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3) -> None:
        super().__init__()
        self.lower, self.upper = lower, upper

    def construct(self, input: Tensor) -> Tensor:
        return activations.rrelu(input, self.lower, self.upper, self.training)


class _Plain(Module):
    """An activation without arguments."""

    function: Any = None

    def construct(self, input: Tensor) -> Tensor:
        return type(self).function(input)


class Mish(_Plain):
    """`x tanh(softplus(x))`."""

    function = staticmethod(activations.mish)


class SELU(_Plain):
    """Scaled exponential linear unit."""

    function = staticmethod(activations.selu)


class Tanhshrink(_Plain):
    """`x - tanh(x)`."""

    function = staticmethod(activations.tanhshrink)


class ReLU6(_Plain):
    """`x` cut to `[0, 6]`."""

    function = staticmethod(ops.relu6)


class Hardsigmoid(_Plain):
    """`relu6(x + 3) / 6`."""

    function = staticmethod(ops.hardsigmoid)


class Hardswish(_Plain):
    """`x relu6(x + 3) / 6`."""

    function = staticmethod(ops.hardswish)


class LogSigmoid(_Plain):
    """Logarithm of the sigmoid."""

    function = staticmethod(activations.logsigmoid)


class Softsign(_Plain):
    """`x / (1 + |x|)`."""

    function = staticmethod(ops.softsign)
