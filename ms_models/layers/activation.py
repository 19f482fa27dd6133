"""Activations of feed-forward layers, by the names that `config.json` gives them."""

from __future__ import annotations

import math
from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, ops

from mappings.errors import UserError

Activation = Callable[[Tensor], Tensor]
ROOT, CUBIC = math.sqrt(2 / math.pi), 0.044715  # of the GELU by the hyperbolic tangent


def gelu(x: Tensor) -> Tensor:
    """`x * Phi(x)`, Phi the distribution of the standard normal (Hendrycks and Gimpel 2016)."""
    return ops.gelu(x, approximate="none")


def gelu_tanh(x: Tensor) -> Tensor:
    """`x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x + 0.044715 x**3)`, written as `x * sigmoid(2 u)`.

    The same function. On CPU the fused kernel of MindSpore takes six times as long (measured: 133 ms against 21 for
    the gradient of 3 M elements), and `ops.tanh` is off by 1e-4.
    """
    wide = x.astype(ms.float32)  # the cube of 41 is beyond fp16
    return (wide * ops.sigmoid(wide * (2 * ROOT) + wide * wide * wide * (2 * ROOT * CUBIC))).astype(x.dtype)


def gelu_tanh_fused(x: Tensor) -> Tensor:
    """`gelu_tanh` in one kernel, for devices where that pays."""
    return ops.gelu(x, approximate="tanh")


def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`."""
    return ops.relu(x)


def silu(x: Tensor) -> Tensor:
    """`x * sigmoid(x)`."""
    return ops.silu(x)


# transformers has several names for one function, told apart by the kernel that computes it.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu,
    "gelu_python": gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_python_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "swish": silu,
}


def activation(field: str, name: object) -> Activation:
    """The function of a name.

    Args:
        field: of `config.json`, for the message.
        name: its value.

    Raises:
        UserError: the name is none of the known ones.
    """
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(f"config.json: {field} {name!r} is not supported (known: {known})")
    chosen = ACTIVATIONS[name]
    return gelu_tanh_fused if chosen is gelu_tanh and ms.get_current_device()[0] != "CPU" else chosen
