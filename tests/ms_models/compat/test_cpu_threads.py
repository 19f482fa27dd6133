"""The number of kernel threads. A process can set it once, so MindSpore's setter is replaced here."""

from __future__ import annotations

import os
from types import SimpleNamespace

import mindspore as ms
import pytest

from ms_models.compat import cpu_threads


@pytest.mark.parametrize(
    ("cores", "allowed", "asked", "is_set", "want"),
    [
        (4, 4, "2", False, [2]),
        (4, 3, None, False, [3]),  # bound to three of the cores
        (4, 1, "2", False, [1]),
        (4, 4, "2,1", False, [2]),  # a number for each level of nesting
        (4, 4, None, False, []),  # MindSpore's own choice
        (4, 4, "8", False, []),
        (4, 4, "1", True, []),  # the program's own choice
    ],
)
def test_number(
    cores: int, allowed: int, asked: str | None, is_set: bool, want: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    conf = SimpleNamespace(is_op_threads_num_configured=lambda: is_set)
    monkeypatch.setattr(cpu_threads, "RuntimeConf", SimpleNamespace(get_instance=lambda: conf))
    monkeypatch.setattr(ms.device_context.cpu.op_tuning, "threads_num", numbers.append)
    cpu_threads.limit_kernel_threads()
    assert numbers == want
