"""Parameters of which tensor parallel ranks hold a piece each (`Piece` of ms_models/parallel), seen as a whole.

Whoever draws or loads values asks here, and so needs to know nothing about ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def whole_like(tensor: Tensor, values: Any) -> Any:
    """The whole of values that are laid out like `tensor`, e.g. an optimizer's moments. Every rank must call it."""
    piece = getattr(tensor, "piece", None)
    if piece is None or not isinstance(values, Tensor) or values.shape != tensor.shape:
        return values
    return piece.whole(values)


def own_like(tensor: Tensor, values: Tensor) -> Tensor:
    """What a rank keeps of what `whole_like` gave."""
    piece = getattr(tensor, "piece", None)
    return (
        values
        if piece is None or tuple(values.shape) != tuple(piece.shape)
        else own_values(tensor, values).astype(values.dtype)
    )


def refuse_replicas(parameters: Iterable[Any], ranks: Sequence[int]) -> None:
    """Ranks that hold different pieces of a parameter are no replicas: their gradients must not be averaged.

    Raises:
        ValueError: two of `ranks` share out a parameter.
    """
    for parameter in parameters:
        shared = set(getattr(getattr(getattr(parameter, "piece", None), "group", None), "ranks", ())) & set(ranks)
        if len(shared) > 1:
            raise ValueError(
                f"the ranks {sorted(shared)} hold different pieces of {parameter.name}, so they are no replicas; call "
                "set_mesh with a layout that has dp, and name the ranks of one dp group as process_group"
            )


def own_values(tensor: Tensor, values: Tensor) -> Tensor:
    """What a rank keeps of values for the whole of `tensor`, in its type."""
    piece = getattr(tensor, "piece", None)
    if piece is not None:
        wide = values.astype(ms.float32) if values.dtype == ms.bfloat16 else values  # numpy knows no bf16
        values = Tensor(piece.take(wide.asnumpy()))
    return values.astype(tensor.dtype)
