"""One order of axes for what both frameworks return of a batch."""

from __future__ import annotations

import numpy as np


def by_token(values: np.ndarray, batch: int, length: int) -> np.ndarray:
    """The values with axes [batch, length, ...] in front, where they are one per token.

    transformers calls experts and routers with all tokens in a row, some norms of heads with [batch, heads, length,
    width], what all heads share with an axis of one head, and position tables once for all rows. Other arrays are
    returned as they are; nothing is computed.

    Args:
        values: of a module.
        batch: rows of the batch.
        length: of the rows.
    """
    shape = values.shape
    if shape[:2] == (batch, length):
        return values.reshape(batch, length, shape[3]) if len(shape) == 4 and shape[2] == 1 else values
    if shape[:1] == (batch * length,):
        return values.reshape(batch, length, *shape[1:])
    if shape[:2] == (1, length):
        return np.broadcast_to(values, (batch, *shape[1:])).copy()
    if len(shape) == 4 and (shape[0], shape[2]) == (batch, length):
        return np.ascontiguousarray(values.swapaxes(1, 2))
    return values
