"""The one buffer of a thread, used again for every tile."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]
ALIGNMENT = 64  # of the parts


class Arena:
    """Memory of which parts are taken one behind the other, until it is reserved anew."""

    def __init__(self) -> None:
        self._memory: Buffer = np.empty(0, np.uint8)
        self._used = 0

    def reserve(self, nbytes: int) -> None:
        """Makes it large enough for what will be taken; parts taken before are no longer valid."""
        self._used = 0
        if nbytes > len(self._memory):
            self._memory = np.empty(0, np.uint8)  # first give back, then take
            self._memory = np.empty(nbytes, np.uint8)

    def take(self, nbytes: int) -> Buffer:
        """A part; `ALIGNMENT` more bytes must have been reserved for each."""
        start = self._used
        self._used = start + -(-nbytes // ALIGNMENT) * ALIGNMENT
        return self._memory[start : start + nbytes]
