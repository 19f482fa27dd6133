"""Methods that tensors have under another name in MindSpore, called on an object whose type only the program knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn


def if_tensor(value: Any, tensor: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
    """`tensor(value)` if the value is a tensor, else `other(value)`: the call as it was written."""
    return tensor(value) if isinstance(value, Tensor) else other(value)


def if_tensor_or_cell(value: Any, native: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
    """`native(value)` if the value is a tensor or a cell, else `other(value)`: the call as it was written."""
    return native(value) if isinstance(value, Tensor | nn.Cell) else other(value)
