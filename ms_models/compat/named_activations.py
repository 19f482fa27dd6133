"""Activations by the name that a transformers configuration gives them (`hidden_act`), and their classes."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from mindspore import Tensor, nn, ops

from . import activation_layers, activations
from .image_layers import PReLU
from .module import Module


class GELUTanh(Module):
    """GELU by the hyperbolic tangent."""

    def __init__(self, use_gelu_tanh_python: bool = False) -> None:
        super().__init__()

    def construct(self, input: Tensor) -> Tensor:
        return _gelu_tanh(input)


PytorchGELUTanh = GELUTanh


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + activations.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


class NewGELUActivation(Module):
    """GELU by the hyperbolic tangent, the one of GPT-2."""

    def construct(self, input: Tensor) -> Tensor:
        return _gelu_tanh(input)


class GELUActivation(Module):
    """Exact GELU."""

    def __init__(self, use_gelu_python: bool = False) -> None:
        super().__init__()

    def construct(self, input: Tensor) -> Tensor:
        return ops.gelu(input, approximate="none")


class SiLUActivation(Module):
    """`x sigmoid(x)`."""

    def construct(self, input: Tensor) -> Tensor:
        return ops.silu(input)


class FastGELUActivation(Module):
    """GELU by the hyperbolic tangent, with its constants rounded."""

    def construct(self, input: Tensor) -> Tensor:
        inner = input * 0.7978845608 * (1.0 + 0.044715 * input * input)
        return 0.5 * input * (1.0 + activations.tanh(inner))


class QuickGELUActivation(Module):
    """`x sigmoid(1.702 x)`."""

    def construct(self, input: Tensor) -> Tensor:
        return input * ops.sigmoid(1.702 * input)


class ClippedGELUActivation(Module):
    """Exact GELU between `min` and `max`."""

    def __init__(self, min: float, max: float) -> None:
        if min > max:
            raise ValueError(f"min should be < max (got min: {min}, max: {max})")
        super().__init__()
        self.min = min
        self.max = max

    def construct(self, x: Tensor) -> Tensor:
        return ops.clamp(ops.gelu(x, approximate="none"), self.min, self.max)


class AccurateGELUActivation(Module):
    """GELU by the hyperbolic tangent, the one of MEGA."""

    def construct(self, input: Tensor) -> Tensor:
        return _gelu_tanh(input)


class MishActivation(Module):
    """`x tanh(softplus(x))`."""

    def construct(self, input: Tensor) -> Tensor:
        return activations.mish(input)


class LinearActivation(Module):
    """`x`."""

    def construct(self, input: Tensor) -> Tensor:
        return input


class LaplaceActivation(Module):
    """Distribution function of the normal distribution."""

    def construct(self, input: Tensor, mu: float = 0.707107, sigma: float = 0.282095) -> Tensor:
        return 0.5 * (1.0 + ops.erf((input - mu) / (sigma * math.sqrt(2.0))))


class ReLUSquaredActivation(Module):
    """`relu(x)^2`."""

    def construct(self, input: Tensor) -> Tensor:
        positive = ops.relu(input)
        return positive * positive


class SqrtSoftplusActivation(Module):
    """`sqrt(softplus(x))`."""

    def construct(self, input: Tensor) -> Tensor:
        return ops.sqrt(activations.softplus(input))


class TanhActivation(Module):
    """Hyperbolic tangent."""

    def construct(self, input: Tensor) -> Tensor:
        return activations.tanh(input)


class ClassInstantier(OrderedDict[str, Any]):
    """Name -> class, or class and arguments; looking a name up makes a new object."""

    def __getitem__(self, key: str) -> Any:
        content = super().__getitem__(key)
        kind, arguments = content if isinstance(content, tuple) else (content, {})
        return kind(**arguments)


class _Missing:
    """A name without a counterpart; using it says so."""

    def __init__(self) -> None:
        raise NotImplementedError("the activation xielu has no counterpart")


ACT2CLS: dict[str, Any] = {
    "gelu": GELUActivation,
    "gelu_10": (ClippedGELUActivation, {"min": -10, "max": 10}),
    "gelu_fast": FastGELUActivation,
    "gelu_new": NewGELUActivation,
    "gelu_python": (GELUActivation, {"use_gelu_python": True}),
    "gelu_pytorch_tanh": GELUTanh,
    "gelu_python_tanh": (GELUTanh, {"use_gelu_tanh_python": True}),
    "gelu_accurate": AccurateGELUActivation,
    "hardswish": activation_layers.Hardswish,
    "laplace": LaplaceActivation,
    "leaky_relu": (nn.LeakyReLU, {"alpha": 0.01}),
    "linear": LinearActivation,
    "mish": MishActivation,
    "quick_gelu": QuickGELUActivation,
    "relu": nn.ReLU,
    "relu2": ReLUSquaredActivation,
    "relu6": activation_layers.ReLU6,
    "sigmoid": nn.Sigmoid,
    "silu": SiLUActivation,
    "sqrtsoftplus": SqrtSoftplusActivation,
    "swish": SiLUActivation,
    "tanh": TanhActivation,
    "prelu": PReLU,
    "xielu": _Missing,
}
ACT2FN = ClassInstantier(ACT2CLS)


def get_activation(activation_string: str) -> Any:
    """A new object of the class of a name.

    Raises:
        KeyError: no such name.
    """
    if activation_string not in ACT2FN:
        raise KeyError(f"function {activation_string} not found in ACT2FN mapping {list(ACT2FN)}")
    return ACT2FN[activation_string]


gelu_python = get_activation("gelu_python")
gelu_new = get_activation("gelu_new")
gelu = get_activation("gelu")
gelu_fast = get_activation("gelu_fast")
gelu_pytorch_tanh = get_activation("gelu_pytorch_tanh")
quick_gelu = get_activation("quick_gelu")
silu = get_activation("silu")
mish = get_activation("mish")
linear_act = get_activation("linear")
