"""Memory that this rank has taken."""

from __future__ import annotations

import resource

import psutil

from ms_models.compat.device import accelerator_available

GB = 1e9
_process = psutil.Process()


def memory_now() -> float:
    """GB that the rank holds: of the device where there is one, else of the process (resident).

    On a device this follows MindSpore's documentation and was not measured.
    """
    if accelerator_available():
        import mindspore as ms

        return float(ms.runtime.memory_allocated()) / GB
    return float(_process.memory_info().rss) / GB


def memory_peak() -> float:
    """GB that the rank held at most, up to now; see `memory_now`."""
    if accelerator_available():
        import mindspore as ms

        return float(ms.runtime.max_memory_allocated()) / GB
    # Linux counts in KiB, and looks less often than `memory_now`.
    return max(float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024 / GB, memory_now())
