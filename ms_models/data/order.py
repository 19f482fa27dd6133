"""Which row of the corpus stands at which position of the training stream.

The stream is one permutation of the rows after another, an epoch each. A row's position depends on the seed and the
number of rows alone, so every layout sees the same global batches and a run resumes from one number.
"""

from __future__ import annotations

import numpy as np


class SampleOrder:
    """The stream of row numbers for a corpus of `rows` rows.

    Args:
        rows: at least 1.
        seed: of the order.
        stream: further numbers that tell streams of one seed apart.
    """

    def __init__(self, rows: int, seed: int, stream: tuple[int, ...] = ()) -> None:
        assert rows > 0, "an empty corpus has no order"
        self.rows, self.seed, self.stream = rows, seed, stream
        self._cached: tuple[int, np.ndarray] | None = None

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Row numbers at global `positions` (any shape, any epoch)."""
        epochs, offsets = np.divmod(positions, self.rows)
        result = np.empty(positions.shape, np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            result[chosen] = self._permutation(int(epoch))[offsets[chosen]]
        return result

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._cached is None or self._cached[0] != epoch:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch, *self.stream])))
            self._cached = (epoch, generator.permutation(self.rows))
        return self._cached[1]


def batch_positions(
    start: int, steps: int, *, micro_batch_size: int, accumulation: int, dp: int, dp_rank: int
) -> np.ndarray:
    """Positions of one data-parallel rank for `steps` optimizer steps from position `start`.

    Micro-batches are dealt to the ranks in turn, so `dp=2, accumulation=a` and `dp=1, accumulation=2a` hold the same
    micro-batches and the same global batch.

    Returns:
        int64 array [steps, accumulation, micro_batch_size].
    """
    step, micro, row = np.ogrid[:steps, :accumulation, :micro_batch_size]
    return start + ((step * accumulation + micro) * dp + dp_rank) * micro_batch_size + row
