"""Becomes another program that ends when the process ends that started this one: `python tethered.py COMMAND ...`.

A script of its own, because what a forked copy of a process with threads may do before it becomes another program is
next to nothing: `preexec_fn` runs Python there, after the handlers of the libraries that are loaded; MindSpore's crash.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has Linux end this process when its parent dies, so that not even a killed launcher leaves ranks behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(command: list[str]) -> None:
    """Runs the command in place of this program; the kernel's promise outlasts that."""
    die_with_parent()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
