"""Kills a process at every single change to the disk that a save makes. Imports no MindSpore, so that it may fork.

    python killed_saves.py DIRECTORY

In `DIRECTORY/n` is a run with checkpoints 1 and 2, whose process was killed before the n-th change that saving 3 makes.
Prints the number of changes.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mappings.layout import ParallelLayout
from ms_models.train.checkpoints.saver import Saver
from ms_models.train.checkpoints.writing import Contents
from ms_models.train.config import CheckpointConfig

SAVED = (1, 2)
NEW = 3


def contents_of(step: int) -> Contents:
    """Different at every step."""
    tensors = {"w": np.full((64, 1024), step, np.float32), "v": np.full(5, step, np.float32)}
    files = {"model-rank00000.safetensors": tensors, "optimizer-rank00000.safetensors": {"exp_avg.w": tensors["w"]}}
    return Contents(files, {"random-rank00000.json": b"{}", "config.json": b"{}"})


def save(run: Path, step: int) -> None:
    """A save of one process."""
    saver = Saver(run, 0, ParallelLayout(), "llama", CheckpointConfig(asynchronous=step == NEW), lambda flag: flag)
    saver.begin(step, contents_of(step), {"step": step, "data": {"position": 8 * step}}, time.perf_counter())
    saver.finish()


class Changes:
    """Counts what changes the disk, and kills the process before the change of a given number."""

    def __init__(self, deadly: int) -> None:
        self.deadly, self.count = deadly, 0
        for owner, name in [
            (os, "fsync"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"), (os, "rename"), (os, "replace"), (os, "open"),
        ]:  # fmt: skip
            self._watch(owner, name)
        self._watch_files()

    def see(self) -> None:
        """One change is about to be made."""
        self.count += 1
        if self.count == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def _watch(self, owner: Any, name: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            self.see()
            return call(*args, **options)

        setattr(owner, name, watched)

    def _watch_files(self) -> None:
        changes, real = self, io.open

        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            handle = real(file, mode, *args, **options)
            if "w" not in mode:
                return handle
            write = handle.write

            def halves(data: Any) -> int:
                # A piece that a killed process wrote in part: the first half is on its way to the disk.
                changes.see()
                half = len(data) // 2
                write(data[:half])
                handle.flush()
                changes.see()
                write(data[half:])
                return len(data)

            return _Handle(handle, halves)

        io.open = opened  # type: ignore[assignment]


class _Handle:
    """A file whose `write` is another one."""

    def __init__(self, handle: Any, write: Callable[[Any], int]) -> None:
        self._handle, self.write = handle, write

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def child(run: Path, deadly: int) -> int:
    """Saves in a process of its own that is killed; gives the signal that ended it, or -changes if none did."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        changes = Changes(deadly)
        try:
            save(run, NEW)
            os.write(writer, str(changes.count).encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = os.read(reader, 100)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -int(said)


def main(folder: Path) -> int:
    """All points; gives their number."""
    for step in SAVED:
        save(folder / "start", step)
    number = 0
    while True:
        number += 1
        run = folder / str(number)
        shutil.copytree(folder / "start", run)
        ended = child(run, number)
        if ended < 0:
            assert -ended == number - 1, "the same changes every time"
            shutil.rmtree(run)
            return number - 1
        assert ended == signal.SIGKILL


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]))}\n")
