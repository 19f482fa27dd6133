"""What the device can carry between ranks."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor


def has_native_collectives() -> bool:
    """Whether the device runs every collective itself (Ascend), rather than the sum-AllReduce only (CPU)."""
    return bool(ms.get_current_device()[0] != "CPU")


def chosen(native: bool | None) -> bool:
    """Which way a Cell goes: as told, or by what the device has."""
    return has_native_collectives() if native is None else native


def require_carried(x: Tensor) -> None:
    """Refuses what cannot be carried on every device.

    Raises:
        TypeError: `x` is not of fp32, fp16, bf16, int32 or int64.
    """
    floating = x.dtype == ms.float32 or x.dtype == ms.float16 or x.dtype == ms.bfloat16
    if not floating and x.dtype != ms.int32 and x.dtype != ms.int64:
        raise TypeError("collectives carry fp32, fp16, bf16, int32 and int64; cast other tensors first")


def share(x: Tensor, axis: int, size: int) -> int:
    """The length of one of `size` equal slices of `x` along `axis`.

    Raises:
        ValueError: the axis cannot be divided evenly.
    """
    if x.shape[axis] % size != 0:
        raise ValueError(f"axis {axis} of length {x.shape[axis]} cannot be cut over {size} ranks")
    return x.shape[axis] // size
