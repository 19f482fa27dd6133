"""`PhaseTimes`: seconds of a step by its parts. Imports no MindSpore."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable


class PhaseTimes:
    """Told when a part begins; what ran before it is waited for first, so that it counts for the part before.

    Args:
        wait: waits for the device.
        clock: gives seconds.
    """

    def __init__(self, wait: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._wait, self._clock = wait, clock
        self._phase: str | None = None
        self._since = 0.0
        self._seconds: dict[str, float] = defaultdict(float)

    def enter(self, phase: str) -> None:
        """A part begins, and the one before it ends."""
        self._wait()
        now = self._clock()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def take(self) -> dict[str, float]:
        """Seconds by part since the last call; what follows counts from the next part on."""
        if self._phase is not None:
            self.enter(self._phase)
        self._phase = None
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken
