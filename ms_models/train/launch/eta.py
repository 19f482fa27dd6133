"""`Eta`: how long a run still takes, at its pace so far. Imports no MindSpore."""

from __future__ import annotations

import time
from collections.abc import Callable


class Eta:
    """The rest of a run, evaluations and checkpoints at the pace they had.

    Args:
        steps: of the whole run.
        clock: seconds.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._clock = steps, clock
        self._begin: tuple[int, float] | None = None
        self._last = 0

    def after(self, step: int) -> str:
        """Takes note that a step is done.

        Returns:
            `h:mm:ss` until the last one; empty at the first call, as its step compiles and tells nothing.
        """
        now = self._clock()
        before, self._last = self._last, step
        if self._begin is None or step <= before:  # the first, or the run went back to a checkpoint
            self._begin = step, now
            return ""
        seconds = round((now - self._begin[1]) / (step - self._begin[0]) * (self._steps - step))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
