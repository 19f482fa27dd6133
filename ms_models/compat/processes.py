"""`Process`: one of Python's own, started afresh, because a fork of a program that runs MindSpore hangs."""

from multiprocessing import get_context

Process = get_context("spawn").Process
