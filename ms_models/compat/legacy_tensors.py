"""torch's old constructors: `torch.Tensor(2, 3)` is a shape, `torch.Tensor([2, 3])` are values."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import ops


def float_tensor(*args: Any) -> ms.Tensor:
    """`torch.Tensor(...)`, `torch.FloatTensor(...)`: see `tensor_of`."""
    return tensor_of(ms.float32, *args)


def long_tensor(*args: Any) -> ms.Tensor:
    """`torch.LongTensor(...)`: see `tensor_of`."""
    return tensor_of(ms.int64, *args)


def tensor_of(dtype: Any, *args: Any) -> ms.Tensor:
    """A tensor of the given values, or of zeros in the shape of the given integers; torch leaves memory as it is."""
    if len(args) == 1 and not isinstance(args[0], int):
        data = args[0]
        return data.astype(dtype) if isinstance(data, ms.Tensor) else ms.tensor(data, dtype=dtype)
    return ops.zeros(args if args else (0,), dtype=dtype)
