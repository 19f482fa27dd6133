"""Threads of kernels on CPU: as many as the process may use, as in torch.

MindSpore counts the cores of the machine, and two threads that share one core wait for each other at every operation.
"""

from __future__ import annotations

import os

import mindspore as ms
from mindspore._c_expression import RuntimeConf


def limit_kernel_threads() -> None:
    """Heed OMP_NUM_THREADS and the cores that the process is bound to, unless the program has set a number itself."""
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    number = min(allowed, int(asked)) if asked.isdecimal() and int(asked) else allowed
    is_set = RuntimeConf.get_instance().is_op_threads_num_configured()
    if number < cores and not is_set and ms.get_context("device_target") == "CPU":
        ms.device_context.cpu.op_tuning.threads_num(number)
