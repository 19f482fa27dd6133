"""`x.to(y)` where only the running program knows whether `y` is a device, a data type or a tensor."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn


def moved(value: Any, *targets: Any, **options: Any) -> Any:
    """`value.to(*targets)`: a data type, or that of a tensor, is applied; MindSpore places tensors itself.

    Anything but a tensor or a cell has a `to` of its own, which is called.
    """
    if not isinstance(value, Tensor | nn.Cell):
        return value.to(*targets, **options)
    for target in (*targets, options.get("dtype")):
        dtype = target.dtype if isinstance(target, Tensor) else target
        if isinstance(dtype, ms.dtype.Type):
            value = value.to(dtype)
    return value
