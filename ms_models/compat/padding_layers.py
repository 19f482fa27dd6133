"""Padding of one to three axes as modules; `padding` is a number or `(left, right, top, bottom, ...)`."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from .module import Module
from .padding import pad


class _Padding(Module):
    """Widths for `rank` axes, the last axis first."""

    rank = 2
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.rank) if isinstance(padding, int) else tuple(padding)

    def construct(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, self.mode, self.value)


class ConstantPad2d(_Padding):
    """Height and width, filled with `value`."""

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad1d(ConstantPad2d):
    """The last axis, filled with `value`."""

    rank = 1


class ConstantPad3d(ConstantPad2d):
    """The last three axes, filled with `value`."""

    rank = 3


class ZeroPad1d(_Padding):
    """The last axis, filled with zeros."""

    rank = 1


class ZeroPad2d(_Padding):
    """Height and width, filled with zeros."""


class ZeroPad3d(_Padding):
    """The last three axes, filled with zeros."""

    rank = 3


class ReflectionPad1d(_Padding):
    """The last axis, mirrored without the edge."""

    rank = 1
    mode = "reflect"


class ReflectionPad2d(_Padding):
    """Height and width, mirrored without the edge."""

    mode = "reflect"


class ReflectionPad3d(_Padding):
    """The last three axes, mirrored without the edge."""

    rank = 3
    mode = "reflect"


class ReplicationPad1d(_Padding):
    """The last axis, by repeating the edge."""

    rank = 1
    mode = "replicate"


class ReplicationPad2d(_Padding):
    """Height and width, by repeating the edge."""

    mode = "replicate"


class ReplicationPad3d(_Padding):
    """The last three axes, by repeating the edge."""

    rank = 3
    mode = "replicate"


class CircularPad1d(_Padding):
    """The last axis, going round."""

    rank = 1
    mode = "circular"


class CircularPad2d(_Padding):
    """Height and width, going round."""

    mode = "circular"


class CircularPad3d(_Padding):
    """The last three axes, going round."""

    rank = 3
    mode = "circular"
