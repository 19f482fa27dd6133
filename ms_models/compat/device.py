"""Devices as values. MindSpore places tensors itself, so a device only answers questions and is never an argument."""

from __future__ import annotations

from typing import Any

import mindspore as ms

_TYPES = ("cpu", "cuda", "npu", "mps", "xpu", "meta")


class device:
    """What `torch.device` is to a program: `type`, `index`, comparison, text; a context that changes nothing."""

    def __init__(self, type: Any, index: int | None = None) -> None:
        if isinstance(type, device):
            type, index = type.type, type.index
        elif isinstance(type, int):
            type, index = accelerator_type(), type
        elif ":" in type:
            type, _, number = type.partition(":")
            index = int(number)
        if type not in _TYPES:
            raise RuntimeError(f"Expected one of {', '.join(_TYPES)} device type, but got {type!r}")
        self.type: str = type
        self.index = index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        inner = f"type='{self.type}'" if self.index is None else f"type='{self.type}', index={self.index}"
        return f"device({inner})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __enter__(self) -> device:
        if self.type == "meta":
            raise RuntimeError("the meta device has no MindSpore counterpart; create the tensors for real")
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def accelerator_available() -> bool:
    """Whether MindSpore runs on an accelerator (Ascend or GPU) rather than on the CPU."""
    return ms.get_context("device_target") != "CPU"


def accelerator_type() -> str:
    """The word for the accelerator in converted code: `cuda`, or `cpu` without one."""
    return "cuda" if accelerator_available() else "cpu"


def device_count() -> int:
    """Number of accelerators this process can see; 0 on the CPU."""
    return int(ms.hal.device_count()) if accelerator_available() else 0


def device_of(value: Any) -> device:
    """Where a tensor lives."""
    return device(accelerator_type())
