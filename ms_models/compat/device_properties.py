"""What an accelerator says of itself, and where a tensor is; each question that needs an accelerator raises without."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from .device import accelerator_available, current_device, device

__all__ = ["device_index", "get_device", "get_device_capability", "get_device_properties", "mem_get_info"]


def _number(index: Any) -> int:
    if not accelerator_available():
        raise RuntimeError("no accelerator is available")
    if index is None:
        return current_device()
    number = index if isinstance(index, int) else device(index).index
    return current_device() if number is None else number


def get_device_properties(index: Any = None) -> Any:
    """MindSpore's description of an accelerator: on Ascend `name`, `total_memory` and `free_memory`, in bytes.

    Raises:
        RuntimeError: there is no accelerator.
    """
    return ms.hal.get_device_properties(_number(index))


def get_device_capability(index: Any = None) -> tuple[int, int]:
    """CUDA's number of a chip generation, which only a GPU has.

    Raises:
        RuntimeError: there is no accelerator, or it is no GPU.
    """
    number = _number(index)
    if ms.get_context("device_target") != "GPU":
        raise RuntimeError("an Ascend device has no CUDA capability; take the branch that fits it")
    major, minor = ms.hal.get_device_capability(number)
    return major, minor


def mem_get_info(index: Any = None) -> tuple[int, int]:
    """Free and total memory of an accelerator in bytes.

    Raises:
        RuntimeError: there is no accelerator.
    """
    properties = get_device_properties(index)
    return properties.free_memory, properties.total_memory


def get_device(tensor: ms.Tensor) -> int:
    """Number of the accelerator that this process computes on, -1 for the CPU."""
    return current_device() if accelerator_available() else -1


class device_index:
    """A context for the accelerator that the process already uses; None changes nothing.

    Raises:
        RuntimeError: on entry, if there is no accelerator, or another one is asked for.
    """

    def __init__(self, index: int | None) -> None:
        self.index = index

    def __enter__(self) -> None:
        if self.index is not None and _number(self.index) != current_device():
            raise RuntimeError("a running process keeps its device; choose it with mindspore.set_device or msrun")

    def __exit__(self, *exc: object) -> None:
        return None
