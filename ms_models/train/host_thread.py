"""Keeps the host's thread from waiting in a loop while a compiled graph runs on CPU."""

from __future__ import annotations

import os

import mindspore as ms

VARIABLE = "MS_DEV_RUNTIME_CONF"
SETTING = "graph_pipeline:false"


def wait_quietly() -> None:
    """Has this process run graphs in the thread that calls them, on CPU; before the first operation of all.

    MindSpore 2.10 hands a graph to another thread and asks in a loop whether it is done. That pays where a device does
    the work; on CPU the loop takes the time of a core from the kernels (measured: a training step of a 30M-parameter
    Llama on one core takes 1.6 to 2.3 times as long). A value that the user has set stays.
    """
    if ms.get_context("device_target") == "CPU":  # asks no device, so that it may come before communication begins
        os.environ.setdefault(VARIABLE, SETTING)
