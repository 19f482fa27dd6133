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
    if values.ndim == 4 and (values.shape[0], values.shape[2]) == (batch, length) != values.shape[:2]:
        values = np.ascontiguousarray(values.swapaxes(1, 2))
    shape = values.shape
    if len(shape) == 4 and shape[:3] == (batch, length, 1):
        return values.reshape(batch, length, shape[3])
    if shape[:1] == (batch * length,) and shape[:2] != (batch, length):
        return values.reshape(batch, length, *shape[1:])
    if shape[:2] == (1, length) != (batch, length):
        return np.broadcast_to(values, (batch, *shape[1:])).copy()
    return values
