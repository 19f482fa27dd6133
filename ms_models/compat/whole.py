"""Parameters of which tensor parallel ranks hold a piece each (`Piece` of ms_models/parallel), seen as a whole.

Whoever draws or loads values asks here, and so needs to know nothing about ranks.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor


def whole_shape(tensor: Tensor) -> tuple[int, ...]:
    """Shape of the whole; a tensor's own where nothing is cut."""
    piece = getattr(tensor, "piece", None)
    return tuple(tensor.shape) if piece is None else tuple(piece.shape)


def own_numbers(tensor: Tensor, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a rank keeps of numbers for the whole of `tensor`, so that every rank must have the same numbers."""
    piece = getattr(tensor, "piece", None)
    return numbers if piece is None else piece.take(numbers)


def own_values(tensor: Tensor, values: Tensor) -> Tensor:
    """What a rank keeps of values for the whole of `tensor`, in its type."""
    piece = getattr(tensor, "piece", None)
    if piece is not None:
        wide = values.astype(ms.float32) if values.dtype == ms.bfloat16 else values  # numpy knows no bf16
        values = Tensor(piece.take(wide.asnumpy()))
    return values.astype(tensor.dtype)
