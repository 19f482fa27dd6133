"""Devices as values. MindSpore places tensors itself, so a device only answers questions and is never an argument."""

from __future__ import annotations

import time
from typing import Any

import mindspore as ms
from mindspore.graph.api import _pynative_executor

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


_selected = [0]


def set_device(index: Any) -> None:
    """Choose the accelerator of this process by number; on the CPU the number is only remembered."""
    number = index if isinstance(index, int) else device(index).index
    _selected[0] = 0 if number is None else number
    if accelerator_available():
        ms.set_device(ms.get_context("device_target"), _selected[0])


def current_device() -> int:
    """Number of the accelerator that `set_device` chose, 0 at first."""
    return _selected[0]


def synchronize() -> None:
    """Wait for everything that was started; `mindspore.runtime.synchronize` returns at once on the CPU."""
    _pynative_executor.sync()
    if accelerator_available():
        ms.runtime.synchronize()


class Event:
    """A point in time: `record` waits for the work that was started and looks at the clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Set the point to now."""
        synchronize()
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Returns at once: `record` has waited."""

    def query(self) -> bool:
        """Always true."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another.

        Raises:
            ValueError: one of them was not recorded.
        """
        if self._time is None or end_event._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time - self._time) * 1000.0


def device_name() -> str:
    """Name of the accelerator.

    Raises:
        RuntimeError: there is none.
    """
    if not accelerator_available():
        raise RuntimeError("no accelerator is available")
    return str(ms.hal.get_device_name(_selected[0]))
