"""`Signals`: SIGINT, SIGTERM and SIGHUP end a launcher in order."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNAL_EXIT = 128
"""Exit code of a command that a signal ended, less the number of the signal."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked the launcher to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Turns the signals into `Interrupted`. A context manager.

    While `deferred` a signal is only noted and `check` raises, so that none strikes between the start of the
    processes and the block that ends them, nor while they are being ended. A signal that is ignored, as SIGHUP is
    under `nohup`, stays so.
    """

    def __init__(self) -> None:
        self.deferred = False
        self._noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        numbers = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises what was noted."""
        if self._noted is not None:
            raise Interrupted(self._noted)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._noted = number
        if not self.deferred:
            self.deferred = True  # once is enough: what cleans up now is not disturbed again
            raise Interrupted(number)
